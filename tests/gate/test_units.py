"""Numbers as text: significant digits, no exponent, a dash for what is missing."""

from __future__ import annotations

import pytest

from gate import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (1234.56, "1235"),
        (12.3456, "12.35"),
        (0.0123456, "0.01235"),
        (1e-6, "0.000001"),
        (-2.5, "-2.500"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert units.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (0.44, "0.4 s"), (12.2, "12 s"), (185, "3 m 05 s"), (3720, "1 h 02 m")]
)
def test_duration(seconds: float | None, text: str) -> None:
    assert units.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "digits", "sign", "text"),
    [
        (1.2489999, 3, "", "1.248"),
        (1.001, 3, "", "1.001"),
        (2.0, 3, "", "2.000"),
        (1e-9, 3, "", "0.000"),
        (6.29, 1, "+", "+6.2"),
        (-6.29, 1, "+", "-6.2"),
        (-6.29, 0, "", "-6"),
    ],
)
def test_a_lower_bound_is_rounded_towards_zero(value: float, digits: int, sign: str, text: str) -> None:
    assert units.least(value, digits, sign) == text


def test_shares_ratios_and_bytes() -> None:
    assert units.percent(0.052) == "5.2 %"
    assert units.ratio(1.00049) == "1.000"
    assert units.gib(2**31) == "2.00 GiB"
    assert {units.percent(None), units.ratio(None), units.gib(None)} == {"–"}


def test_one_of_a_thing_has_no_plural() -> None:
    assert [units.counted(count, "near tie") for count in (0, 1, 2)] == ["0 near ties", "1 near tie", "2 near ties"]
