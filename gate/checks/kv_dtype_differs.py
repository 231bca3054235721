"""The arms keep their KV cache in different dtypes.

What it does
    Voids the run when both arms report a resolved KV cache dtype and the two differ.
Why
    FP8 keys and values are half the bytes of BF16: one arm reads less memory per token and computes something else.
    A checkpoint that asks for FP8 has been honoured by one arm only.
Deciding numbers
    kv_cache_dtype of both arms, read back. "auto" is not an answer: it counts as unknown.
What to do
    Set kv_cache_dtype in the recipe; it is passed to both arms.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.evidence import Evidence
from gate.observe.rows import Finding

CODE = "kv-dtype-differs"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = "set kv_cache_dtype in the recipe; it is passed to both arms"

SPELLINGS = {
    "bf16": "bfloat16",
    "torch.bfloat16": "bfloat16",
    "fp8_e4m3": "fp8",
    "torch.float8_e4m3fn": "fp8",
    "float8_e4m3fn": "fp8",
    "auto": None,
}
"""How servers write the dtypes that recipes name; vLLM's "fp8" is E4M3."""


def resolved(name: str | None) -> str | None:
    """One spelling per dtype; None when the server did not say or said "auto"."""
    return None if name is None else SPELLINGS.get(name.lower(), name.lower())


def differ(candidate: str | None, oracle: str | None) -> bool:
    ours, theirs = resolved(candidate), resolved(oracle)
    return ours is not None and theirs is not None and ours != theirs


def check(evidence: Evidence) -> Iterator[Finding]:
    candidate, oracle = evidence.identity("candidate"), evidence.identity("oracle")
    if candidate is None or oracle is None:
        return
    if differ(candidate.kv_cache_dtype, oracle.kv_cache_dtype):
        found = f"candidate {candidate.kv_cache_dtype}, oracle {oracle.kv_cache_dtype}"
        yield Finding(code=CODE, message=f"KV cache dtypes: {found}; expected equal ones", hint=HINT)
