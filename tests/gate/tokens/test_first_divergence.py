"""The first difference, and only it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.tokens.first_divergence import first_divergence

IDS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("candidate", "oracle", "position"),
    [
        ((1, 2, 3), (1, 2, 3), None),
        ((9, 2, 3), (1, 2, 3), 0),
        ((1, 2, 9), (1, 2, 3), 2),
        ((1, 9, 9), (1, 2, 3), 1),
        ((), (), None),
    ],
)
def test_by_hand(candidate: tuple[int, ...], oracle: tuple[int, ...], position: int | None) -> None:
    assert first_divergence(candidate, oracle) == position


def test_sequences_of_different_length_may_differ_before_the_end() -> None:
    assert first_divergence((1, 2), (3, 2, 1)) == 0


def test_a_prefix_is_a_fault_of_length_not_of_tokens() -> None:
    with pytest.raises(ValueError, match="sequences of 2 and 3 tokens"):
        first_divergence((1, 2), (1, 2, 3))


@given(IDS, st.data())
def test_everything_before_it_is_equal_and_it_is_not(ids: list[int], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.integers(0, 5), min_size=len(ids), max_size=len(ids)))
    position = first_divergence(ids, other)
    assert position == first_divergence(other, ids)
    if position is None:
        assert ids == other
    else:
        assert ids[:position] == other[:position]
        assert ids[position] != other[position]
