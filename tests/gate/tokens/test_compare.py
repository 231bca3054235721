"""Both arms' ids at one concurrency: what is paired, what is counted, what is left out."""

from __future__ import annotations

from typing import Any

import pytest

from gate.tokens.compare import compare, divergence, pair_up


@pytest.fixture
def pairs(build: Any) -> Any:
    """The four pairs of c2, repetition 0, equal in both arms."""
    rows = [r for r in build.run().requests if (r.concurrency, r.repetition) == (2, 0)]
    return pair_up([r for r in rows if r.arm == "candidate"], [r for r in rows if r.arm == "oracle"])


def changed(pairs: Any, index: int, **changes: Any) -> Any:
    ours, theirs = pairs[index]
    return (*pairs[:index], (ours.model_copy(update=changes), theirs), *pairs[index + 1 :])


def test_equal_ids_are_exact(pairs: Any) -> None:
    found = compare(pairs, (), 0.25)
    assert (found.sequences, found.exact, found.uncompared, found.divergences) == (4, 4, 0, ())
    assert found.max_margin_nats is None


def test_only_equal_prompts_are_paired(pairs: Any) -> None:
    ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    other = ours[0].model_copy(update={"prompt_sha256": "another"})
    assert len(pair_up([other, *ours[1:]], theirs)) == 3
    assert len(pair_up(ours, theirs[1:])) == 3


def test_a_sequence_is_charged_once(pairs: Any) -> None:
    """Everything after the first difference differs too, and is not counted."""
    ids = (*pairs[1][0].token_ids[:2], 9, 9, 9, 9, 9, 9)
    found = compare(changed(pairs, 1, token_ids=ids), (), 0.25)
    assert (found.exact, found.unjudged, found.near_tie, found.diverged) == (3, 1, 0, 0)
    (split,) = found.divergences
    assert (split.index, split.position, split.candidate_id, split.oracle_id) == (1, 2, 9, pairs[1][1].token_ids[2])


def test_margins_are_found_by_place_and_ids(build: Any, pairs: Any) -> None:
    broken = pairs
    for index in (0, 1):
        broken = changed(broken, index, token_ids=(9, *pairs[index][0].token_ids[1:]))
    place = {"concurrency": 2, "repetition": 0, "position": 0, "candidate_id": 9}
    margins = [
        build.margin(**place, index=k, oracle_id=pairs[k][1].token_ids[0], margin_nats=nats)
        for k, nats in ((0, 0.1), (1, 0.7))
    ]
    found = compare(broken, margins, 0.25)
    assert (found.near_tie, found.diverged, found.unjudged, found.max_margin_nats) == (1, 1, 0, 0.7)
    assert [d.margin_nats for d in found.divergences] == [0.1, 0.7]
    elsewhere = [m.model_copy(update={"position": 1}) for m in margins]
    assert compare(broken, elsewhere, 0.25).unjudged == 2


@pytest.mark.parametrize("ids", [None, (1, 2, 3)], ids=["no ids", "too few"])
def test_what_cannot_be_compared_is_counted_apart(pairs: Any, ids: Any) -> None:
    found = compare(changed(pairs, 2, token_ids=ids), (), 0.25)
    assert (found.sequences, found.exact, found.uncompared) == (3, 3, 1)


def test_a_divergence_needs_ids(pairs: Any) -> None:
    ours, theirs = pairs[0]
    assert divergence(ours, theirs) is None
    with pytest.raises(ValueError, match="without token ids"):
        divergence(ours.model_copy(update={"token_ids": None}), theirs)
