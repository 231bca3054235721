"""A divergence is excused by the oracle's own indecision, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from gate.tokens.near_tie import Kind, classify

PLACE = {"concurrency": 1, "repetition": 0, "index": 0, "position": 0, "candidate_id": 1, "oracle_id": 2}


@pytest.mark.parametrize(
    ("margin", "kind"),
    [
        (0.0, Kind.NEAR_TIE),
        (-3.0, Kind.NEAR_TIE),
        (0.25, Kind.NEAR_TIE),
        (0.2500001, Kind.DIVERGED),
        (5.0, Kind.DIVERGED),
    ],
    ids=["exact tie", "the oracle prefers the candidate's", "at the bound", "just above", "decided"],
)
def test_the_bound(build: Any, margin: float, kind: Kind) -> None:
    assert classify(build.margin(**PLACE, margin_nats=margin), 0.25) is kind


def test_an_exact_tie_is_excused_even_without_a_bound(build: Any) -> None:
    assert classify(build.margin(**PLACE, margin_nats=0.0), 0.0) is Kind.NEAR_TIE


def test_outside_the_oracles_top_is_decided(build: Any) -> None:
    assert classify(build.margin(**PLACE, margin_nats=None, outside_top=True), 0.25) is Kind.DIVERGED


def test_no_answer_is_no_judgement(build: Any) -> None:
    assert classify(build.margin(**PLACE, margin_nats=None), 0.25) is Kind.UNJUDGED
    assert classify(None, 0.25) is Kind.UNJUDGED
