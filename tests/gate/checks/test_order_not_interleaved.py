"""order-not-interleaved: palindromic blocks or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from gate.checks.order_not_interleaved import imbalance


def arms(letters: str) -> list[Any]:
    return ["candidate" if letter == "A" else "oracle" for letter in letters]


@pytest.mark.parametrize(
    ("letters", "expected"), [("AB", 1), ("ABBA", 0), ("ABAB", 1), ("ABBAAB", 1 / 3), ("AAABBB", 3), ("ABABAB", 1)]
)
def test_imbalance_in_legs(letters: str, expected: float) -> None:
    assert imbalance(arms(letters)) == pytest.approx(expected)
    assert imbalance(arms(letters[::-1])) == pytest.approx(expected)


@pytest.mark.parametrize("letters", ["AAABBB", "BBBAAA", "ABABAB", "AABBAB"])
def test_other_orders_void_the_concurrency(build: Any, found: Any, letters: str) -> None:
    (finding,) = found(build.reorder(build.run(), letters), "order-not-interleaved")
    assert (finding.concurrency, finding.leg_id, finding.axis) == (2, None, None)
    relative = letters if letters[0] == "A" else letters.translate(str.maketrans("AB", "BA"))
    assert f"c2 ran {relative}" in finding.message


@pytest.mark.parametrize("letters", ["ABBAAB", "BAABBA"])
def test_palindromic_blocks_are_silent(build: Any, found: Any, letters: str) -> None:
    assert found(build.reorder(build.run(), letters)) == []


def test_an_unfinished_concurrency_is_not_judged_yet(build: Any, found: Any) -> None:
    run = build.reorder(build.run(), "AAABBB")
    assert found(build.without_legs(run, build.leg_id(run, "oracle", 2, 2)), "order-not-interleaved") == []
