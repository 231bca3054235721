"""4 The effective settings of a running server under one name each, from all that it said: HTTP first, then its log.

What neither says is None. Two servers rarely spell a value alike; each setting knows how to compare.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gate.observe.rows import Identity

NOTHING = frozenset({"", "none", "null"})
UNRESOLVED = "auto"
"""A request, not an answer."""


def word(text: str) -> str | None:
    """Lower case; "auto" is an answer that was not given."""
    plain = text.strip().lower()
    return None if plain == UNRESOLVED else plain


def dtype(text: str) -> str | None:
    plain = (word(text) or "").removeprefix("torch.")
    return {"bf16": "bfloat16", "half": "float16", "fp16": "float16", "float": "float32"}.get(plain, plain) or None


def scheme(text: str) -> str | None:
    """The family: vLLM says "modelopt_mixed" where the checkpoint, and we, say "modelopt"."""
    plain = word(text)
    return None if plain is None else "none" if plain in NOTHING else plain.partition("_")[0]


def absent_or(text: str) -> str | None:
    plain = word(text)
    return "none" if plain is None or plain in NOTHING else plain


def sampling(text: str) -> str | None:
    """Only what would act on a request that says temperature 0: no other default touches a greedy choice."""
    try:
        table = json.loads(text.replace("'", '"'))
    except ValueError:
        return None
    if not isinstance(table, dict):
        return None
    acting = {name: float(table[name]) for name in PENALTIES if isinstance(table.get(name), int | float)}
    return json.dumps({name: value for name, value in acting.items() if value != PENALTIES[name]}, sort_keys=True)


PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Defaults of generation_config.json that move a greedy choice too, and the value at which they do nothing."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing a server can be set to."""

    name: str
    keys: tuple[str, ...]
    """Where it stands in Identity.extra, in order of trust."""
    spell: Callable[[str], str | None]
    equal: bool
    """True: arms that differ in it do different work. False: each may choose its own best, if the recipe says so."""


SETTINGS = (
    Setting("max_num_seqs", ("config.max_num_seqs", "log.max_num_seqs"), word, equal=True),
    Setting("dtype", ("config.dtype", "log.dtype"), dtype, equal=True),
    Setting("quantization", ("manifest.quantization", "log.quantization"), scheme, equal=True),
    Setting("speculative_config", ("config.speculative_config", "log.speculative_config"), absent_or, equal=True),
    Setting("tensor_parallel_size", ("config.tensor_parallel_size", "log.tensor_parallel_size"), word, equal=True),
    Setting("pipeline_parallel_size", ("config.pipeline_parallel_size", "log.pipeline_parallel_size"), word, True),
    Setting("data_parallel_size", ("config.data_parallel_size", "log.data_parallel_size"), word, equal=True),
    Setting("mamba_ssm_cache_dtype", ("config.mamba_ssm_cache_dtype", "log.mamba_ssm_cache_dtype"), dtype, equal=True),
    Setting("sampling_defaults", ("config.sampling_defaults", "log.sampling_defaults"), sampling, equal=True),
    Setting("scheduling_policy", ("config.scheduling_policy", "log.scheduling_policy"), word, equal=True),
    Setting("enable_chunked_prefill", ("config.enable_chunked_prefill", "log.enable_chunked_prefill"), word, False),
    Setting("max_num_batched_tokens", ("config.max_num_batched_tokens", "log.max_num_batched_tokens"), word, False),
)
"""max_model_len, the KV cache dtype and prefix caching have checks of their own. Graphs are the oracle's matter, see
oracle-handicapped: an engine without them is only slower."""
FREE = tuple(setting.name for setting in SETTINGS if not setting.equal)
"""Those that a recipe's may_differ can name."""


def said(identity: Identity) -> dict[str, str]:
    """Identity.extra with the engine's manifest opened: its entries under "manifest.<name>"."""
    return dict(identity.extra) | {f"manifest.{key}": _text(value) for key, value in manifest(identity).items()}


def manifest(identity: Identity) -> Mapping[str, Any]:
    """What our engine says it is made of; empty for another server, or one that is still loading."""
    try:
        table = json.loads(identity.extra.get("manifest", "{}"))
    except ValueError:
        return {}
    return table if isinstance(table, dict) else {}


def effective(identity: Identity | None) -> dict[str, str | None]:
    """Every setting's value; None where the server did not say."""
    known = {} if identity is None else said(identity)
    return {setting.name: _value(setting, known) for setting in SETTINGS}


def _value(setting: Setting, known: Mapping[str, str]) -> str | None:
    spelled = (setting.spell(known[key]) for key in setting.keys if key in known)
    return next((value for value in spelled if value is not None), None)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
