"""Ratios of what was not measured, and bands as they are labelled."""

from __future__ import annotations

import pytest

from gate.stats.band import assumed
from gate.stats.median import ratio


@pytest.mark.parametrize(
    ("candidate", "oracle"), [(None, 1.0), (1.0, None), (0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (1.0, -1.0)]
)
def test_without_two_positive_medians_there_is_no_ratio(candidate: float | None, oracle: float | None) -> None:
    assert ratio(candidate, oracle, "higher") is None
    assert ratio(candidate, oracle, "lower") is None


def test_a_guessed_prior_says_so() -> None:
    assert assumed(0.01).source == "assumed"
