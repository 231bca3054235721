"""Amounts of memory: exact, and never without saying which of the two kinds of giga is meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import UsageError
from gate.fit.amount import UNITS, digits_for, parse, shown, unit_of


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNITS)))
def test_whole_amounts_are_exact(number: int, unit: str) -> None:
    assert parse(f"{number}{unit}", "--x") == parse(f" {number} {unit} ", "--x") == number * UNITS[unit]


@given(st.integers(0, 10**6), st.integers(0, 10**9 - 1))
def test_decimals_of_gb_are_exact_to_the_byte(whole: int, rest: int) -> None:
    assert parse(f"{whole}.{rest:09d}GB", "--x") == whole * 10**9 + rest


def test_the_two_giga_differ() -> None:
    assert parse("24GiB", "--x") == 24 * 2**30
    assert parse("24GB", "--x") == 24 * 10**9
    assert parse("1.5GiB", "--x") == 3 * 2**29


@pytest.mark.parametrize("text", ["24", "24G", "24Gb", "24 gib", "-1GB", "1e3GB", "GB", "", "24KB", "1,5GB", "inf GB"])
def test_a_number_without_a_clear_unit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--gpu-memory .*; expected a number with GB \(10\^9 bytes\) or GiB"):
        parse(text, "--gpu-memory")


def test_the_answer_has_the_questions_unit() -> None:
    assert [unit_of(text) for text in ("80GB", "80000MB", "24GiB", "24576 MiB", None)] == ["GB", "GB", *["GiB"] * 3]
    assert shown(2**30, "GiB") == "1.00"
    assert shown(2**30, "GB") == "1.07"
    assert shown(None, "GB") == "–"
    assert (digits_for(2**30, "GiB"), digits_for(2**30 - 1, "GiB")) == (2, 5)
