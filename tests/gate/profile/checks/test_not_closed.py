"""not-closed: kernels that do not explain the wall time; the boundary is 1 %, and the table is still shown."""

from __future__ import annotations

import pytest

from gate.profile import checks
from gate.profile.checks.evidence import Evidence
from tests.gate.profile.checks.conftest import STEP_US, with_tables


@pytest.mark.parametrize(("factor", "closes"), [(1.0, True), (1.0095, True), (1.0115, False), (0.9895, False)])
def test_within_one_per_cent(good: Evidence, factor: float, closes: bool) -> None:
    changed = with_tables(good, lambda _: {"wall_us": STEP_US * factor})
    assert {f.code for f in checks.findings(changed)} == (set() if closes else {"not-closed"})


def test_the_message_has_both_times(good: Evidence) -> None:
    """The recorded 27B step against the mean TPOT of a serving run: 8996 of 9260 µs."""
    found = checks.findings(with_tables(good, lambda _: {"wall_us": 9260.0}))
    assert [f.arm for f in found] == ["candidate", "oracle"]
    assert found[0].message.startswith("kernels run 8996 µs of candidate's 9260 µs a step (-2.8 %)")
    assert "not-closed" not in checks.REFUSING


@pytest.mark.parametrize(
    ("factor", "hint"), [(1.05, "the device waits for the host"), (0.95, "tracing slowed the step")]
)
def test_the_hint_is_of_the_side_it_is_off_to(good: Evidence, factor: float, hint: str) -> None:
    found = checks.findings(with_tables(good, lambda _: {"wall_us": STEP_US * factor}))
    assert all(f.hint.startswith(hint) for f in found)


def test_overlapping_kernels_close_by_their_union(good: Evidence) -> None:
    """Dependent launches: the sum is 30 % above the wall time, the union is not."""
    slower = with_tables(good, lambda t: {"kernels": tuple(k.model_copy(update={"us": k.us * 1.3}) for k in t.kernels)})
    assert checks.findings(slower) == ()


@pytest.mark.parametrize("missing", ["wall_us", "busy_us"])
def test_half_of_what_it_takes_closes_nothing(good: Evidence, missing: str) -> None:
    found = checks.findings(with_tables(good, lambda _: {missing: None}))
    assert {f.code for f in found} == {"not-closed"}


def test_a_step_without_idle_time_closes_on_its_kernels_alone(good: Evidence) -> None:
    """0.95 % above the wall time: nothing is added to it."""
    assert checks.findings(with_tables(good, lambda _: {"busy_us": 1009.5, "wall_us": 1000.0})) == ()


def test_how_far_beyond_the_limit_it_is(good: Evidence) -> None:
    (found, _) = checks.findings(with_tables(good, lambda _: {"busy_us": 970.0, "wall_us": 1000.0}))
    assert found.beyond == pytest.approx(3.0)


@pytest.mark.parametrize("missing", ["gap_us", "largest_gap_us"])
def test_one_gap_without_the_other_is_not_told(good: Evidence, missing: str) -> None:
    told = {"wall_us": 9260.0, "gap_us": 8941.2, "largest_gap_us": 50_300.0, missing: None}
    assert checks.findings(with_tables(good, lambda _: told))[0].message.endswith("within 1 %")


def test_the_message_tells_a_longer_step_from_a_stop_once_a_request(good: Evidence) -> None:
    told = with_tables(good, lambda _: {"wall_us": 9260.0, "gap_us": 8941.2, "largest_gap_us": 50_300.0})
    assert checks.findings(told)[0].message.endswith("; between two tokens 8941 µs by the median, 50300 at most")
    assert checks.findings(with_tables(good, lambda _: {"wall_us": 9260.0}))[0].message.endswith("within 1 %")


def test_a_device_that_waits_in_the_trace_as_well_closes(good: Evidence) -> None:
    """The 27B's step of vLLM, 2026-12-01: kernels run 8977 of 9282 µs; the trace has the rest between them, or not."""
    waits = {"busy_us": 8977.0, "wall_us": 9282.0}
    assert checks.findings(with_tables(good, lambda _: waits | {"idle_us": 300.0})) == ()
    (found, _) = checks.findings(with_tables(good, lambda _: waits | {"idle_us": 100.0}))
    assert found.message.startswith("kernels run 8977 µs and none for 100 of candidate's 9282 µs a step (-2.2 %)")
    assert found.hint == "kernels of the step are missing from the trace"
    (slowed, _) = checks.findings(with_tables(good, lambda _: waits | {"idle_us": 500.0}))
    assert slowed.hint.startswith("tracing slowed the step")
