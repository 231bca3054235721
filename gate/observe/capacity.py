"""4 How much KV cache an arm holds, by its own word: what its memory has to be seen against.

vLLM takes what a share of the device leaves for KV cache, whether anybody needs it; our engine takes what the limits
need. The memory of two arms says little until both hold as many tokens, or the difference stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from gate.observe.rows import Identity

SIZE, BLOCKS, BLOCK, BYTES = "kv_cache_size_tokens", "num_gpu_blocks", "block_size", "kv_cache_memory_bytes"
"""Labels of vLLM's cache_config_info; ours are the same. Versions that do not name the size log it."""
EQUAL_WITHIN = 0.1
"""Share by which capacities may differ and still count as equal: servers round to blocks of up to 1,600 tokens."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Each None where the server does not say."""

    tokens: int | None = None
    upper_bound: bool = False
    """Tokens are blocks × block size: more than a hybrid model can use, whose recurrent states take blocks too."""
    kv_bytes: int | None = None


def capacity(identity: Identity | None) -> Capacity:
    if identity is None:
        return Capacity()
    kv_bytes, told = _number(identity, BYTES), _number(identity, SIZE)
    if told is not None:
        return Capacity(told, False, kv_bytes)
    blocks, block = _number(identity, BLOCKS), _number(identity, BLOCK)
    if blocks is None or block is None:
        return Capacity(None, False, kv_bytes)
    # Our blocks hold keys and values alone; vLLM's pool holds recurrent states as well.
    return Capacity(blocks * block, "engine" not in identity.extra, kv_bytes)


def equal(candidate: Capacity, oracle: Capacity) -> bool | None:
    """None where one of them is not known."""
    if candidate.tokens is None or oracle.tokens is None:
        return None
    larger = max(candidate.tokens, oracle.tokens)
    return abs(candidate.tokens - oracle.tokens) <= EQUAL_WITHIN * larger


def text(known: Capacity, dtype: str | None) -> str:
    """`131072 tokens of fp8`, `at most 1048576 tokens`, `unknown`."""
    if known.tokens is None:
        return "unknown"
    bound = "at most " if known.upper_bound else ""
    return f"{bound}{known.tokens} tokens" + (f" of {dtype}" if dtype else "")


def _number(identity: Identity, label: str) -> int | None:
    said = (identity.extra.get(f"{source}.{label}", "") for source in ("config", "log"))
    return next((int(value) for value in said if value.isdecimal() and int(value) > 0), None)
