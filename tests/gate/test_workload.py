from __future__ import annotations

import hashlib
import json
import struct
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gate.errors import CheckpointError, UsageError
from gate.workload import Prompt, leg_seed, longest_common_prefix, make_prompts, prompts_digest, vocabulary


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(max_examples=100, deadline=None)
@given(
    count=st.integers(1, 40),
    length=st.integers(1, 12),
    vocab_size=st.integers(8, 60),
    seed=st.integers(0, 2**63),
    limit=st.integers(0, 10),
    reserved=st.frozensets(st.integers(0, 6), max_size=5),
)
def test_prompts_hold_what_they_promise(
    count: int, length: int, vocab_size: int, seed: int, limit: int, reserved: frozenset[int]
) -> None:
    heads = (vocab_size - len(reserved)) ** min(limit + 1, length)
    if count > heads:
        with pytest.raises(UsageError, match=f"at most {heads} prompts"):
            make_prompts(
                count=count,
                length=length,
                vocab_size=vocab_size,
                seed=seed,
                max_common_prefix=limit,
                reserved=reserved,
            )
        return
    prompts = make_prompts(
        count=count, length=length, vocab_size=vocab_size, seed=seed, max_common_prefix=limit, reserved=reserved
    )
    assert [p.index for p in prompts] == list(range(count))
    assert {len(p.token_ids) for p in prompts} == {length}
    assert len({p.token_ids for p in prompts}) == count
    assert all(0 <= i < vocab_size and i not in reserved for p in prompts for i in p.token_ids)
    longest = max((common(a.token_ids, b.token_ids) for a, b in combinations(prompts, 2)), default=0)
    assert longest <= limit
    assert longest == longest_common_prefix(prompts)


def test_seed_decides_everything() -> None:
    def digest(seed: int) -> str:
        return prompts_digest(make_prompts(count=4, length=64, vocab_size=500, seed=seed, max_common_prefix=8))

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def test_hash_is_of_little_endian_int32() -> None:
    (prompt,) = make_prompts(count=1, length=5, vocab_size=300000, seed=3, max_common_prefix=0)
    assert prompt.sha256 == hashlib.sha256(struct.pack("<5i", *prompt.token_ids)).hexdigest()


def test_legs_and_warmups_of_a_run_share_no_long_prefix() -> None:
    prompts = [
        prompt
        for concurrency in (1, 2, 4)
        for repetition in range(3)
        for phase in ("warmup", "timed")
        for prompt in make_prompts(
            count=2 * concurrency,
            length=64,
            vocab_size=4099,
            seed=leg_seed(0, concurrency, repetition, phase),  # type: ignore[arg-type]
            max_common_prefix=8,
        )
    ]
    assert len({prompt.sha256 for prompt in prompts}) == len(prompts) == 84
    assert longest_common_prefix(prompts) <= 8


def test_longest_common_prefix_finds_the_pair() -> None:
    rows = [(5, 1, 2, 9), (1, 2, 3, 4), (5, 1, 7, 7), (1, 2, 3, 9)]
    assert longest_common_prefix(Prompt(i, row, "") for i, row in enumerate(rows)) == 3
    assert longest_common_prefix([]) == 0


def write(folder: Path, name: str, value: object) -> None:
    (folder / name).write_text(json.dumps(value), encoding="utf-8")


def test_vocabulary_leaves_out_special_ids_and_padding_rows(tmp_path: Path) -> None:
    write(tmp_path, "config.json", {"image_token_id": 7, "text_config": {"vocab_size": 20, "eos_token_id": 3}})
    write(tmp_path, "generation_config.json", {"eos_token_id": [3, 4], "temperature": 1.0})
    write(tmp_path, "tokenizer.json", {"model": {"vocab": {"a": 0, "b": 11}}, "added_tokens": [{"id": 12}]})
    assert vocabulary(tmp_path) == (13, frozenset({3, 4, 7, 12}))


def test_vocabulary_without_a_tokenizer_is_the_embedding(tmp_path: Path) -> None:
    write(tmp_path, "config.json", {"vocab_size": 20, "bos_token_id": None})
    assert vocabulary(tmp_path) == (20, frozenset())


@pytest.mark.parametrize(("config", "message"), [(None, "no config.json"), ({}, "names no vocab_size")])
def test_vocabulary_of_no_checkpoint(tmp_path: Path, config: object, message: str) -> None:
    if config is not None:
        write(tmp_path, "config.json", config)
    with pytest.raises(CheckpointError, match=message):
        vocabulary(tmp_path)
