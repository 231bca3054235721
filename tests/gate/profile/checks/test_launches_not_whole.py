"""launches-not-whole: two lifetimes subtracted, dropped records; and a heuristic that changes names, which is none."""

from __future__ import annotations

from gate.profile import checks
from gate.profile.rows import TracedKernel, Window
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
