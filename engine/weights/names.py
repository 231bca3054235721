"""Tensor names: one canonical spelling, whatever root the checkpoint uses; vision and MTP told apart by name.

Canonical names have no root: `layers.0.mlp.up_proj`, `embed_tokens`, `norm`, `lm_head`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

ROOTS = ("model.language_model.", "language_model.model.", "language_model.", "model.", "")
"""Roots of the text model, longest first: vision-wrapped as published, as vLLM spells it, and text-only."""

SKIPPED = ("model.visual.", "visual.", "model.mtp.", "mtp.")
"""Vision tower and multi-token prediction: in the files, not in the text model."""


KV_SCALE = re.compile(r"self_attn\.(?:attn\.)?([kv])_scale$")
"""Exporters put KV scales on the projection, on the attention module or inside it; the first is canonical."""


def is_skipped(name: str) -> bool:
    return name.startswith(SKIPPED)


def canonical(name: str) -> str:
    """`model.language_model.layers.0.x` and `model.layers.0.x` -> `layers.0.x`."""
    bare = next(name.removeprefix(root) for root in ROOTS if name.startswith(root))
    return KV_SCALE.sub(r"self_attn.\1_proj.\1_scale", bare) if bare.endswith("_scale") else bare


def spellings(module: str) -> Iterator[str]:
    """Every full name that a canonical one may stand for; patterns in configuration files are written against these."""
    for root in ROOTS:
        yield root + module


def parents(name: str) -> Iterator[str]:
    """The name and its dotted parents: `a.b.c`, `a.b`, `a`. Never `a.b1` for `a.b10`."""
    while name:
        yield name
        name = name.rpartition(".")[0]
