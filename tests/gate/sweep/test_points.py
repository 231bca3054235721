"""Points of a sweep: names and lengths as llama-bench's, and one line for what does not fit."""

from __future__ import annotations

import pytest

from gate.errors import UsageError
from gate.sweep.points import Point, check_context, points


def test_prompts_first_then_every_depth_of_every_length() -> None:
    made = points("128, 512", "16,32", "0,4096")
    assert [point.name for point in made] == [
        "pp128",
        "pp512",
        "tg16",
        "tg16 @ d4096",
        "tg32",
        "tg32 @ d4096",
    ]


@pytest.mark.parametrize(
    ("point", "prompt", "output"),
    [
        (Point(kind="pp", tokens=512), 512, 1),
        (Point(kind="tg", tokens=128), 8, 129),
        (Point(kind="tg", tokens=128, depth=4096), 4096, 129),
    ],
)
def test_a_point_asks_for_its_steps_after_the_prompts_own_token(point: Point, prompt: int, output: int) -> None:
    assert (point.prompt_tokens, point.output_tokens) == (prompt, output)
    assert point.context_tokens == prompt + output


def test_equal_points_are_one_and_an_empty_kind_is_left_out() -> None:
    assert [point.name for point in points("8,8", "", "0")] == ["pp8"]
    assert [point.name for point in points("", "8", "0,0")] == ["tg8"]


@pytest.mark.parametrize(
    ("pp", "tg", "depth", "said"),
    [
        ("a", "8", "0", "--pp 'a'; expected numbers"),
        ("8", "1.5", "0", "--tg '1.5'; expected numbers"),
        ("0", "8", "0", "--pp '0'; expected numbers from 1 up"),
        ("8", "8", "-1", "--depth '-1'; expected numbers from 0 up"),
        ("", "", "0", "neither --pp nor --tg"),
        ("", "8", "", "neither --pp nor --tg"),
    ],
)
def test_what_is_no_point_is_one_line(pp: str, tg: str, depth: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        points(pp, tg, depth)
    assert str(caught.value).startswith(said)
    assert caught.value.exit_code == 64


def test_what_is_over_the_context_is_named_and_what_just_fits_is_not() -> None:
    wanted = points("511,512,600", "", "0")
    check_context(wanted[:1], 512, "the model's")
    check_context(wanted, None, "unknown")
    with pytest.raises(UsageError) as caught:
        check_context(wanted, 512, "the model's")
    said = "pp512 needs a context of 513 tokens, and 1 more; expected at most 512, the model's; leave it out"
    assert str(caught.value) == said
