"""2 Prompts of exact length, as token ids: unique, seeded, hashed, with a bound on every shared prefix.

Token ids, never text: text is re-tokenised by the server, and a prompt of 1,000 ids came out as 5,128 where the two
tokenizers differed. A shared prefix would let a prefix cache answer for the model, so its length is bounded by
construction and can be measured again with `longest_common_prefix`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gate.errors import CheckpointError, UsageError

Phase = Literal["warmup", "timed"]


@dataclass(frozen=True, slots=True)
class Prompt:
    index: int
    """Position in the leg's prompt list."""
    token_ids: tuple[int, ...]
    sha256: str
    """Of the ids as little-endian int32."""


def leg_seed(seed: int, concurrency: int, repetition: int, phase: Phase) -> int:
    """64-bit seed of one leg's prompts; both arms of a (concurrency, repetition) get the same prompts."""
    text = f"{seed}/{concurrency}/{repetition}/{phase}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def make_prompts(
    *,
    count: int,
    length: int,
    vocab_size: int,
    seed: int,
    max_common_prefix: int,
    reserved: frozenset[int] = frozenset(),
) -> tuple[Prompt, ...]:
    """`count` prompts of exactly `length` ids from [0, vocab_size) without `reserved`.

    The first `max_common_prefix + 1` ids of a prompt are the digits of a number, and the numbers of one call are
    distinct, so no two prompts share more than `max_common_prefix` ids. The rest is uniform. Two calls with different
    seeds share a head with probability count² / V^(max_common_prefix + 1): 1e-40 for a real vocabulary.

    Raises UsageError when there are fewer heads than prompts.
    """
    usable = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), np.fromiter(reserved, np.int32, len(reserved)))
    head = min(max_common_prefix + 1, length)
    heads = len(usable) ** head
    if count > heads:
        raise UsageError(
            f"{count} prompts of {length} ids from {len(usable)} usable ids, max_common_prefix {max_common_prefix}",
            expected=f"at most {heads} prompts",
            hint="raise max_common_prefix or prompt_tokens",
        )
    rng = np.random.default_rng(seed)
    ids = usable[rng.integers(0, len(usable), size=(count, length))]
    ids[:, :head] = usable[_distinct_digits(count, head, len(usable), rng)]
    # One int object per vocabulary entry instead of one per prompt position: a fifth of the memory at 16k prompts.
    objects = np.arange(vocab_size).astype(object)
    return tuple(Prompt(i, tuple(objects[row].tolist()), _sha256(row)) for i, row in enumerate(ids))


def prompts_digest(prompts: Iterable[Prompt]) -> str:
    """sha256 over the prompts' own digests, in order."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(bytes.fromhex(prompt.sha256))
    return digest.hexdigest()


def longest_common_prefix(prompts: Iterable[Prompt]) -> int:
    """Ids shared by the two most alike prompts; 0 for fewer than two. Sorted neighbours are the most alike pairs."""
    ordered = sorted(prompt.token_ids for prompt in prompts)
    return max((_common(a, b) for a, b in pairwise(ordered)), default=0)


def vocabulary(checkpoint: Path) -> tuple[int, frozenset[int]]:
    """(vocab_size, reserved ids) of a checkpoint folder: what `make_prompts` may draw from.

    vocab_size is the smaller of the embedding's rows and the tokenizer's ids, since rows that only pad the embedding
    have no text. Reserved are all added tokens (end of text, image placeholders) and every `*_token_id` of the configs.

    Raises CheckpointError when config.json is missing or names no vocab_size.
    """
    config = _read_json(checkpoint / "config.json")
    if config is None:
        raise CheckpointError(f"no config.json in {checkpoint}", expected="a checkpoint folder")
    text = config.get("text_config", config)
    size = text.get("vocab_size")
    if not isinstance(size, int):
        raise CheckpointError(f"{checkpoint}/config.json names no vocab_size", expected="an integer")
    reserved: set[int] = set()
    for table in (config, text, _read_json(checkpoint / "generation_config.json") or {}):
        for key, value in table.items():
            if key.endswith("_token_id"):
                reserved.update(i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int))
    tokenizer = _read_json(checkpoint / "tokenizer.json")
    if tokenizer is not None:
        added = {int(token["id"]) for token in tokenizer.get("added_tokens", [])}
        words = tokenizer.get("model", {}).get("vocab", {})
        reserved |= added
        size = min(size, 1 + max([*added, *(words.values() if isinstance(words, dict) else ()), 0]))
    return size, frozenset(i for i in reserved if 0 <= i < size)


def _distinct_digits(count: int, width: int, base: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """[count, width] digits of `count` distinct numbers below base**width: an affine permutation of 0..count-1."""
    space = base**width
    # Two draws of 64 bits reach any head a test could count; a larger space only needs distinctness.
    start, stride = (int.from_bytes(rng.bytes(8 * width), "little") % space for _ in range(2))
    while math.gcd(stride, space) != 1:
        stride = (stride + 1) % space
    digits = np.empty((count, width), np.int64)
    for row in range(count):
        number = (start + row * stride) % space
        for column in range(width):
            number, digits[row, column] = divmod(number, base)
    return digits


def _sha256(ids: npt.NDArray[np.int32]) -> str:
    return hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest()


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    value = json.loads(path.read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else None
