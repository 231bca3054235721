"""6 What a decode step reads: modules, how often each runs, bytes. From config.json and safetensors headers alone.

Weights count once a step in the dtype they ship in. Routed experts count by the experts that a batch touches: exact for
one sequence, the mean under uniform routing above that (real routing is more concentrated, so it is an upper bound).
Left out: embedding rows, norms, vision tower and MTP head, which a text decode step reads little or nothing of.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from gate.errors import CheckpointError
from gate.observe.rows import Row
from gate.preflight.safetensors_header import DTYPE_BITS

Scheme = Literal["nvfp4", "fp8", "bf16", "state"]
Tensors = Mapping[str, tuple[str, tuple[int, ...]]]
"""Tensor name -> (safetensors dtype, shape)."""

GROUPS = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "in_proj_qkv": "in_proj_qkvz",
    "in_proj_z": "in_proj_qkvz",
    "in_proj_b": "in_proj_ba",
    "in_proj_a": "in_proj_ba",
}
"""Projections of one input, which an engine may run as one product."""
SKIPPED = ("visual.", "mtp.", "model.visual.", "model.mtp.")
STATE_BYTES, CONV_BYTES = 4, 2
"""Recurrent state is fp32 on both arms (--mamba-ssm-cache-dtype float32), the convolution's BF16."""


class Module(Row):
    """One kind of work of a step, over all layers."""

    name: str
    count: int
    """Layers that have it: its launches a step when its projections are merged."""
    parts: int = 1
    """Projections it has: count × parts launches where they are not merged."""
    rows: int | None = None
    """Of a layer's output, its projections merged: what a kernel's grid divides. None for state and routed experts."""
    scheme: Scheme
    nbytes: int
    """Read, and for state also written, in one step."""
    flops: int = 0
    """2 × weights × batch."""
    estimated: bool = False


def modules(config: Mapping[str, Any], tensors: Tensors, *, batch: int, context: int, kv_bytes: int) -> list[Module]:
    """Every module of a decode step of `batch` sequences with `context` tokens each; kv_bytes: of one cached number.

    Raises CheckpointError where config.json lacks a size.
    """
    text: Mapping[str, Any] = config.get("text_config", config)
    names: dict[str, dict[str, Any]] = defaultdict(
        lambda: {"layers": set(), "leaves": set(), "bytes": 0, "n": 0, "rows": 0}
    )
    schemes: dict[str, Scheme] = {}
    for name, (dtype, shape) in tensors.items():
        linear, _, field = name.rpartition(".")
        module = _module(linear)
        if name.startswith(SKIPPED) or module is None or not _is_linear(tensors, linear):
            continue
        layer, group, leaf = module
        entry = names[group]
        entry["layers"].add(layer)
        entry["leaves"].add(leaf)
        entry["bytes"] += DTYPE_BITS[dtype] * math.prod(shape) // 8
        if field in ("weight", "weight_packed"):
            scheme: Scheme = "nvfp4" if dtype == "U8" else "fp8" if dtype.startswith("F8") else "bf16"
            schemes[group] = scheme
            entry["n"] += math.prod(shape) * (2 if scheme == "nvfp4" else 1)
            entry["rows"] += shape[0]
    share, estimated = _touched(text, batch)
    made = []
    for group, entry in names.items():
        part = share if ".experts." in group else 1.0
        made.append(
            Module(
                name=group,
                count=len(entry["layers"]),
                parts=len(entry["leaves"]),
                rows=None if ".experts." in group else entry["rows"] // len(entry["layers"]),
                scheme=schemes[group],
                nbytes=round(entry["bytes"] * part),
                flops=round(2 * entry["n"] * _active(text, group) * batch),
                estimated=estimated and part != 1.0,
            )
        )
    return sorted(made, key=lambda m: m.name) + _states(text, batch, context, kv_bytes)


def read_headers(folder: Path) -> tuple[dict[str, Any], dict[str, tuple[str, tuple[int, ...]]]]:
    """(config.json, every tensor's dtype and shape); no tensor is loaded. Raises CheckpointError."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    try:
        config = json.loads((folder / "config.json").read_bytes())
        for shard in sorted(folder.glob("*.safetensors")):
            with safe_open(shard, framework="np") as file:
                for name in file.keys():  # noqa: SIM118  (no mapping)
                    part = file.get_slice(name)
                    tensors[name] = (str(part.get_dtype()), tuple(part.get_shape()))
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} has no readable census: {error}", hint="gate doctor, or copy it again"
        ) from error
    return config, tensors


def _is_linear(tensors: Tensors, name: str) -> bool:
    """compressed-tensors ships weight_packed instead of weight."""
    return f"{name}.weight" in tensors or f"{name}.weight_packed" in tensors


def _module(linear: str) -> tuple[str, str, str] | None:
    """`model.language_model.layers.3.mlp.experts.7.up_proj` -> ("3", "mlp.experts.gate_up_proj", "up_proj")."""
    parts = linear.split(".")
    if parts[-1] == "lm_head":
        return "", "lm_head", "lm_head"
    if "layers" not in parts:
        return None
    at = parts.index("layers")
    layer, inside = parts[at + 1], [p for p in parts[at + 2 :] if not p.isdigit()]
    leaf = inside[-1] if inside else ""
    if not leaf.endswith("_proj") and leaf not in GROUPS and ".".join(inside[-2:]) not in ROUTERS:
        return None
    return layer, ".".join([*inside[:-1], GROUPS.get(leaf, leaf)]), leaf


ROUTERS = ("mlp.gate", "mlp.shared_expert_gate")


def _touched(text: Mapping[str, Any], batch: int) -> tuple[float, bool]:
    """(share of the experts that a step reads, whether that is an estimate)."""
    experts, chosen = text.get("num_experts"), text.get("num_experts_per_tok")
    if not experts or not chosen:
        return 1.0, False
    return 1 - (1 - chosen / experts) ** batch, batch > 1


def _active(text: Mapping[str, Any], group: str) -> float:
    """Share of a module's weights that one sequence multiplies with."""
    if ".experts." not in group:
        return 1.0
    return float(text["num_experts_per_tok"]) / float(text["num_experts"])


def _states(text: Mapping[str, Any], batch: int, context: int, kv_bytes: int) -> list[Module]:
    try:
        kinds = text.get("layer_types") or _pattern(text)
        gdn, full = kinds.count("linear_attention"), kinds.count("full_attention")
        heads, width = text["linear_num_value_heads"], text["linear_value_head_dim"]
        keys, key_width = text["linear_num_key_heads"], text["linear_key_head_dim"]
        conv = (2 * keys * key_width + heads * width) * (text["linear_conv_kernel_dim"] - 1) * CONV_BYTES
        kv = 2 * text["num_key_value_heads"] * text["head_dim"] * kv_bytes
    except KeyError as error:
        raise CheckpointError(
            f"config.json names no {error.args[0]}", expected="a Qwen3.5 or 3.6 text config"
        ) from error
    state = heads * width * key_width * STATE_BYTES
    return [
        Module(name="gdn.state", count=gdn, scheme="state", nbytes=2 * gdn * state * batch),
        Module(name="gdn.conv_state", count=gdn, scheme="state", nbytes=2 * gdn * conv * batch),
        Module(name="attention.kv", count=full, scheme="state", nbytes=full * kv * context * batch),
        Module(name="attention.kv_write", count=full, scheme="state", nbytes=full * kv * batch),
    ]


def _pattern(text: Mapping[str, Any]) -> list[str]:
    every = text["full_attention_interval"]
    return [
        "full_attention" if i % every == every - 1 else "linear_attention" for i in range(text["num_hidden_layers"])
    ]
