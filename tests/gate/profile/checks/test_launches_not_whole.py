"""launches-not-whole: two lifetimes subtracted, dropped records; and a heuristic that changes names, which is none."""

from __future__ import annotations

import pytest

from gate.profile import checks
from gate.profile.checks.launches_not_whole import fractional
from gate.profile.rows import StepKernel, TracedKernel, Window
from tests.gate.profile.checks.conftest import evidence

MARLIN = "void marlin::Marlin<"


def dropped(window: Window, count: int) -> dict[str, object]:
    """The long window lost some of Marlin's records."""
    if window.output_tokens != 136 or window.arm != "oracle":
        return {}
    kernels = tuple(
        k.model_copy(update={"launches": k.launches - count}) if k.name.startswith(MARLIN) else k
        for k in window.kernels
    )
    return {"kernels": kernels}


def test_114_703_launches_a_step() -> None:
    found = checks.findings(evidence(lambda w: dropped(w, 1830)))
    assert [(f.code, f.arm) for f in found] == [("launches-not-whole", "oracle")]
    assert "114.703 launches a step of void marlin::Marlin" in found[0].message


def test_one_record_in_17544_is_enough() -> None:
    assert {f.code for f in checks.findings(evidence(lambda w: dropped(w, 1)))} == {"launches-not-whole"}


def test_names_that_change_with_the_context_are_whole_together() -> None:
    """A step's 129 products are 100 of one kernel and 29 of another in some steps, the other way round in the rest."""

    def renamed(window: Window) -> dict[str, object]:
        rest = [k for k in window.kernels if not k.name.startswith(MARLIN)]
        (marlin,) = (k for k in window.kernels if k.name.startswith(MARLIN))
        first = window.output_tokens * 100 + (7 if window.output_tokens == 136 else 0)
        parts = (
            TracedKernel(name=f"{MARLIN}1>", grid="", block="", launches=first, us=marlin.us / 2),
            TracedKernel(name=f"{MARLIN}2>", grid="", block="", launches=marlin.launches - first, us=marlin.us / 2),
        )
        return {"kernels": (*rest, *parts)}

    assert checks.findings(evidence(renamed)) == ()


def kernel(name: str, launches: float, us: float = 1.0, family: str = "w4a16") -> StepKernel:
    return StepKernel(name=name, family=family, rule="", launches=launches, us=us)


@pytest.mark.parametrize(
    ("launches", "whole"),
    [
        *((129.0, True), (129.00048, True), (128.99952, True), (129.00052, False), (128.99948, False)),
        *((0.0, True), (0.0002, True), (0.0005, False), (-3.0, False)),
    ],
)
def test_three_decimals_are_the_limit_and_a_step_launches_nothing_less(launches: float, whole: bool) -> None:
    """-3: the long window ran it less often than the short one."""
    assert (fractional((kernel("a", launches),)) == []) is whole


def test_a_whole_kernel_of_the_family_is_not_named_with_a_broken_one() -> None:
    assert [k.name for k in fractional((kernel("whole", 64.0), kernel("broken", 64.5)))] == ["broken"]


def test_the_slowest_of_the_broken_is_named() -> None:
    """Marlin's launches and those of the fastest kernel are short of records; Marlin takes half of the step."""

    def change(window: Window) -> dict[str, object]:
        if window.output_tokens != 136 or window.arm != "oracle":
            return {}
        least = min(window.kernels, key=lambda k: k.us)
        short = [k for k in window.kernels if k is least or k.name.startswith(MARLIN)]
        assert len(short) == 2
        return {
            "kernels": tuple(
                k.model_copy(update={"launches": k.launches - 1}) if k in short else k for k in window.kernels
            )
        }

    (found,) = checks.findings(evidence(change))
    assert found.message.startswith(
        "oracle's measured windows differ by 128.992 launches a step of void marlin::Marlin"
    )
    assert "(2 such kernels)" in found.message
