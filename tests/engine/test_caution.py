"""What steps may hold after one ran out of memory: which failure narrows what, and what widens it again."""

from __future__ import annotations

import pytest

from engine.batch import Segment
from engine.caution import Caution
from engine.request import SamplingParams


def part(name: str, *, sample: bool = True) -> Segment:
    return Segment(name, (1,), 0, (0,), 0, True, sample, SamplingParams(1))


@pytest.fixture
def caution() -> Caution:
    return Caution(16384, 32)


@pytest.fixture
def proven(caution: Caution) -> Caution:
    """a and b have run alone after failing together."""
    for _ in range(2):
        assert caution.failed(4096, ["a", "b"]) is None
    caution.passed([part("a")])
    caution.passed([part("b")])
    return caution


def limits(caution: Caution) -> tuple[int, int, set[str]]:
    return caution.tokens, caution.sequences, caution.suspects


def test_the_first_failure_changes_nothing(caution: Caution) -> None:
    assert caution.failed(16384, ["a", "b"]) is None
    assert limits(caution) == (16384, 32, set())


def test_the_second_makes_suspects_that_a_token_sampled_alone_clears(caution: Caution) -> None:
    caution.failed(16384, ["a", "b"])
    assert caution.failed(16384, ["a", "b"]) is None
    assert limits(caution) == (16384, 32, {"a", "b"})
    caution.passed([part("a", sample=False)])
    caution.passed([part("a"), part("b")])
    assert caution.suspects == {"a", "b"}
    caution.passed([part("a")])
    assert caution.suspects == {"b"}


def test_who_ran_alone_is_no_suspect_again_but_a_newcomer_is(proven: Caution) -> None:
    proven.failed(4096, ["a", "b", "c"])
    assert proven.suspects == {"a", "b", "c"}
    proven.passed([part("c")])
    proven.suspects.clear()
    proven.failed(4096, ["a", "b"])
    assert proven.suspects == set()


def test_together_chunks_shrink_before_there_are_fewer(proven: Caution) -> None:
    seen = []
    for tokens in (16384, 4096, 1024, 256, 64, 16, 4, 2):
        assert proven.failed(tokens, ["a", "b"]) is None
        seen.append((proven.tokens, proven.sequences))
    assert seen == [(4096, 32), (1024, 32), (256, 32), (64, 32), (16, 32), (4, 32), (4, 1), (4, 1)]


def test_alone_chunks_shrink_to_one_token_which_is_tried_twice(caution: Caution) -> None:
    seen = [caution.failed(tokens, ["a"]) for tokens in (16384, 16384, 4096, 1024, 256, 64, 16, 4, 1)]
    assert seen == [None] * 9
    assert caution.tokens == 1
    assert caution.failed(1, ["a"]) == "a"


def test_the_last_chance_of_one_is_not_that_of_another(caution: Caution) -> None:
    caution.failed(1, ["a"])
    assert [caution.failed(1, [name]) for name in ("a", "b", "a", "a")] == [None, None, None, "a"]


def test_an_end_widens_and_at_full_width_a_failure_is_the_first_again(proven: Caution) -> None:
    for tokens in (16384, 4096, 2):
        proven.failed(tokens, ["a", "b"])
    assert limits(proven) == (1024, 1, set())
    widened = []
    for _ in range(5):
        proven.ended("x", blamed=False, left=3)
        widened.append((proven.tokens, proven.sequences))
    assert widened == [(4096, 2), (16384, 4), (16384, 8), (16384, 16), (16384, 32)]
    test_the_first_failure_changes_nothing(proven)


@pytest.mark.parametrize(("blamed", "left"), [(True, 3), (False, 0)])
def test_the_end_of_the_one_to_blame_or_of_the_last_lifts_every_limit(proven: Caution, blamed: bool, left: int) -> None:
    for tokens in (16384, 4096, 2):
        proven.failed(tokens, ["a", "b"])
    proven.ended("a", blamed=blamed, left=left)
    assert limits(proven) == (16384, 32, set())


def test_a_suspect_that_ends_is_none_any_more(caution: Caution) -> None:
    for _ in range(2):
        caution.failed(2, ["a", "b"])
    caution.ended("a", blamed=False, left=1)
    assert caution.suspects == {"b"}
