"""Memory of an arm in a leg: what each axis reads, which arm's word counts, and what leaves it without a value."""

from __future__ import annotations

from typing import Any

import pytest

from gate.cells import covers
from gate.checks.evidence import Evidence
from gate.judge import judge
from gate.metrics import AXES, SERVER_AXES, server_axes_for
from gate.metrics.host_drop import host_drop_bytes
from gate.metrics.peak_gpu import peak_gpu_bytes, reported_gpu_bytes, started_gpu_bytes
from gate.metrics.peak_host_pss import peak_host_pss_bytes
from gate.metrics.peak_host_rss import peak_host_rss_bytes
from gate.observe.rows import LegRow, Verdict
from gate.observe.rundata import RunData
from gate.report.model import Cell, Report
from gate.units import GIB

FIELDS = {
    "peak_gpu_bytes": "gpu_peak_bytes",
    "peak_host_rss_bytes": "server_peak_rss_bytes",
    "peak_host_pss_bytes": "server_peak_pss_bytes",
    "host_drop_bytes": "host_available_drop_bytes",
}


def leg(**memory: int | None) -> LegRow:
    fields: dict[str, object] = {
        "leg_id": "000-oracle-c1-r0",
        "order": 0,
        "arm": "oracle",
        "concurrency": 1,
        "repetition": 0,
        "started_at": "x",
        "start_ns": 0,
        "end_ns": 1,
        "requests": 1,
        "failed": 0,
        "server_start_id": "x",
        "identity_before": "x",
        "identity_after": "x",
        "lock_held": True,
    }
    return LegRow.model_validate(fields | memory)


def with_memory(build: Any, run: RunData, candidate: dict[str, int], oracle: dict[str, int]) -> RunData:
    """The good run, each leg with its arm's memory."""
    for row in run.legs:
        memory = candidate if row.arm == "candidate" else oracle
        run = build.alter_leg(run, row.leg_id, **memory) if memory else run
    return run


def cells(report: Report, axis: str) -> list[Cell]:
    return [cell for cell in report.cells if cell.axis == axis]


def test_each_axis_reads_its_own_figure() -> None:
    row = leg(
        gpu_peak_bytes=1,
        gpu_reported_bytes=2,
        gpu_start_bytes=6,
        server_peak_rss_bytes=3,
        server_peak_pss_bytes=4,
        host_available_drop_bytes=5,
    )
    assert [peak_gpu_bytes(row), reported_gpu_bytes(row), started_gpu_bytes(row)] == [1, 2, 6]
    assert reported_gpu_bytes(leg(gpu_reported_bytes=0)) is None, "no server on a GPU holds none"
    assert [peak_host_rss_bytes(row), peak_host_pss_bytes(row), host_drop_bytes(row)] == [3, 4, 5]
    assert {axis.name: axis.sources[0](row) for axis in SERVER_AXES} == dict(zip(FIELDS, (1, 3, 4, 5), strict=True))


@pytest.mark.parametrize("name", FIELDS)
def test_a_warm_server_keeps_its_peak_for_the_repetition_and_what_a_leg_drew_is_the_legs(build: Any, name: str) -> None:
    axis = next(axis for axis in SERVER_AXES if axis.name == name)
    run = with_memory(build, build.run(), *[{FIELDS[name]: 5 * GIB}] * 2)
    run = build.alter_leg(run, build.leg_id(run, "oracle", 1, 1), **{FIELDS[name]: 9 * GIB})
    kept = 5 * GIB if name == "host_drop_bytes" else 9 * GIB
    assert Evidence.of(run).values(axis, 2, "oracle") == (5 * GIB, kept, 5 * GIB)
    assert Evidence.of(run).values(axis, 2, "candidate") == (5 * GIB,) * 3


def test_a_peak_is_never_the_other_arms_whatever_the_servers_call_their_start(build: Any) -> None:
    axis = next(axis for axis in SERVER_AXES if axis.name == "peak_gpu_bytes")
    run = with_memory(build, build.run(), {"gpu_peak_bytes": 5 * GIB}, {"gpu_peak_bytes": 9 * GIB})
    for row in run.legs:
        run = build.alter_leg(run, row.leg_id, server_start_id="boot")
    assert Evidence.of(run).values(axis, 2, "candidate") == (5 * GIB,) * 3


def test_what_was_not_read_is_none_and_a_host_that_gained_memory_tells_nothing() -> None:
    assert [source(leg()) for axis in SERVER_AXES for source in axis.sources] == [None] * 6
    assert [started_gpu_bytes(leg(gpu_start_bytes=size)) for size in (-1, 0, 1)] == [None, None, 1]
    assert host_drop_bytes(leg(host_available_drop_bytes=-GIB)) is None
    assert host_drop_bytes(leg(host_available_drop_bytes=0)) is None
    assert host_drop_bytes(leg(host_available_drop_bytes=1)) == 1


def test_every_memory_axis_wants_less_and_is_in_bytes() -> None:
    assert [axis.name for axis in SERVER_AXES] == list(FIELDS)
    assert {(axis.unit, axis.direction, axis.tail, axis.name == axis.family) for axis in SERVER_AXES} == {
        ("bytes", "lower", False, True)
    }
    assert [axis.value(()) for axis in SERVER_AXES] == [None] * 4
    assert [axis.name for axis in SERVER_AXES if axis.shared] == ["host_drop_bytes"]


@pytest.mark.parametrize(("axis", "field"), FIELDS.items())
def test_an_axis_is_reported_once_a_leg_has_it_or_the_recipe_asks(axis: str, field: str) -> None:
    assert [found.name for found in server_axes_for([leg(), leg(**{field: GIB})])] == [axis]
    assert [found.name for found in server_axes_for([leg()], primary=(axis,))] == [axis]
    assert server_axes_for([leg()]) == ()


def test_half_the_memory_is_a_ratio_of_two_and_no_value_of_it_is_lost(build: Any) -> None:
    run = with_memory(build, build.run(), {"gpu_peak_bytes": 10 * GIB}, {"gpu_peak_bytes": 20 * GIB})
    found = cells(judge(run), "peak_gpu_bytes")
    assert [cell.concurrency for cell in found] == [1, 2]
    for cell in found:
        assert (cell.ratio, cell.verdict, cell.unit, cell.primary) == (2.0, Verdict.PASS, "bytes", False)
        assert (cell.candidate_values, cell.oracle_values) == ((10 * GIB,) * 3, (20 * GIB,) * 3)


def test_more_memory_fails_where_the_recipe_makes_it_decide(build: Any) -> None:
    protocol = {"primary": ("output_throughput", "peak_gpu_bytes")}
    run = build.run(protocol=protocol)
    report = judge(with_memory(build, run, {"gpu_peak_bytes": 21 * GIB}, {"gpu_peak_bytes": 20 * GIB}))
    assert {cell.verdict for cell in cells(report, "peak_gpu_bytes")} == {Verdict.FAIL}
    assert {cell.verdict for cell in cells(report, "output_throughput")} == {Verdict.PASS}
    assert report.verdict is Verdict.FAIL


def test_where_the_driver_is_silent_about_one_arm_both_arms_own_word_counts(build: Any) -> None:
    told = {"gpu_peak_bytes": 10 * GIB, "gpu_reported_bytes": 8 * GIB}
    silent = {"gpu_reported_bytes": 16 * GIB}
    found = cells(judge(with_memory(build, build.run(), told, silent)), "peak_gpu_bytes")
    assert {cell.ratio for cell in found} == {2.0}
    assert {cell.candidate_median for cell in found} == {8 * GIB}


def test_where_neither_tells_it_is_what_each_start_added(build: Any) -> None:
    ours, theirs = {"gpu_reported_bytes": GIB, "gpu_start_bytes": 4 * GIB}, {"gpu_start_bytes": 12 * GIB}
    found = cells(judge(with_memory(build, build.run(), ours, theirs)), "peak_gpu_bytes")
    assert {cell.ratio for cell in found} == {3.0}


def test_an_arm_that_reports_shows_its_own_word_beside_one_that_does_not_and_no_other_axis_changes(build: Any) -> None:
    run = build.run(protocol={"primary": ("output_throughput", "peak_gpu_bytes")})
    plain = judge(run)
    report = judge(with_memory(build, run, {"gpu_reported_bytes": 8 * GIB}, {}))
    for cell in cells(report, "peak_gpu_bytes"):
        assert (cell.candidate_median, cell.oracle_median) == (8 * GIB, None)
        assert (cell.verdict, cell.ratio) == (Verdict.INCONCLUSIVE, None)
        assert cell.reasons[0].message == "peak_gpu_bytes could not be read for the oracle"
    others = [[cell for cell in made.cells if cell.axis != "peak_gpu_bytes"] for made in (plain, report)]
    assert others[0] == others[1]
    assert others[0]


def test_memory_that_nobody_tells_leaves_that_axis_alone_undecided(build: Any) -> None:
    run = build.run(protocol={"primary": ("output_throughput", "peak_gpu_bytes")})
    report = judge(with_memory(build, run, {"gpu_peak_bytes": GIB}, {}))
    undecided = cells(report, "peak_gpu_bytes")
    assert {(cell.verdict, cell.ratio) for cell in undecided} == {(Verdict.INCONCLUSIVE, None)}
    assert {reason.code for cell in undecided for reason in cell.reasons} == {"memory-unreadable"}
    assert {cell.verdict for cell in cells(report, "output_throughput")} == {Verdict.PASS}


@pytest.mark.parametrize(
    ("ours", "theirs", "arms"),
    [
        ({"gpu_peak_bytes": GIB}, {}, "oracle"),
        ({}, {"gpu_peak_bytes": GIB}, "candidate"),
        ({}, {}, "candidate or the oracle"),
    ],
)
def test_the_arms_that_could_not_be_read_are_named(
    build: Any, ours: dict[str, int], theirs: dict[str, int], arms: str
) -> None:
    run = build.run(protocol={"primary": ("output_throughput", "peak_gpu_bytes")})
    for cell in cells(judge(with_memory(build, run, ours, theirs)), "peak_gpu_bytes"):
        assert cell.reasons[0].message == f"peak_gpu_bytes could not be read for the {arms}"


def test_a_void_cell_keeps_its_cause_where_memory_could_not_be_read_either(build: Any) -> None:
    run = build.run(protocol={"primary": ("output_throughput", "peak_gpu_bytes")})
    run = build.alter_leg(with_memory(build, run, {"gpu_peak_bytes": GIB}, {}), build.leg_id(run), host_oom_kills=1)
    void = [cell for cell in cells(judge(run), "peak_gpu_bytes") if cell.verdict is Verdict.VOID]
    assert [reason.code for cell in void for reason in cell.reasons] == ["oom-kill"]


def test_bad_times_say_nothing_about_memory(build: Any) -> None:
    memory, speed = SERVER_AXES[0], next(axis for axis in AXES if axis.name == "ttft_mean_ms")
    late = build.finding(code="client-saturated", concurrency=1)
    assert (covers(late, 1, memory), covers(late, 1, speed)) == (False, True)
    assert covers(late, 1, SERVER_AXES[-1])  # the host's: somebody else's work is in it
    failed = build.finding(code="failed-request", concurrency=1)
    assert (covers(failed, 1, memory), covers(failed, 2, memory)) == (True, False)
    own = build.finding(code="spread", concurrency=1, axis="peak_gpu_bytes")
    assert (covers(own, 1, memory), covers(own, 1, speed)) == (True, False)


def test_what_a_warm_server_took_in_one_leg_counts_for_its_whole_repetition(build: Any) -> None:
    """The oracle grows at its first c2; the order decides whether its c1 comes before or after."""
    run = with_memory(build, build.run(), {"gpu_peak_bytes": 10 * GIB}, {"gpu_peak_bytes": 10 * GIB})
    grown = build.leg_id(run, "oracle", 2, 0)
    run = build.alter_leg(run, grown, gpu_peak_bytes=20 * GIB)
    for cell in cells(judge(run), "peak_gpu_bytes"):
        assert cell.oracle_values == (20 * GIB, 10 * GIB, 10 * GIB)
        assert cell.candidate_values == (10 * GIB,) * 3


def test_a_server_started_anew_has_a_peak_of_its_own(build: Any) -> None:
    run = with_memory(build, build.run(), {"gpu_peak_bytes": 10 * GIB}, {"gpu_peak_bytes": 10 * GIB})
    grown = build.leg_id(run, "oracle", 2, 0)
    run = build.alter_leg(run, grown, gpu_peak_bytes=20 * GIB, server_start_id="oracle-2")
    values = {cell.concurrency: cell.oracle_values for cell in cells(judge(run), "peak_gpu_bytes")}
    assert values == {1: (10 * GIB,) * 3, 2: (20 * GIB, 10 * GIB, 10 * GIB)}


def test_a_leg_without_a_figure_takes_none_from_its_neighbours(build: Any) -> None:
    run = with_memory(build, build.run(), {"gpu_peak_bytes": 10 * GIB}, {"gpu_peak_bytes": 10 * GIB})
    silent = build.alter_leg(run, build.leg_id(run, "oracle", 2, 0), gpu_peak_bytes=None)
    values = {cell.concurrency: cell.oracle_values for cell in cells(judge(silent), "peak_gpu_bytes")}
    assert values[2][0] is None
    assert values[1] == (10 * GIB,) * 3
