"""What a report says of a run at the power limit, and when it keeps it from binding."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.evidence import Evidence
from gate.judge import judge
from gate.observe.rows import TelemetryRow
from gate.power import missing as sentences
from gate.power import notes as told
from gate.report import html, markdown, terminal

CLOCK, MASK, LIMIT = "gpu0.sm_clock_mhz", "gpu0.throttle_mask", "gpu0.power_limit_w"


def capped(build: Any, run: Any, mhz: float, until: float = 0.5, concurrency: int = 2, arm: str | None = None) -> Any:
    for leg in [leg for leg in run.legs if leg.concurrency == concurrency and arm in (None, leg.arm)]:
        run = build.alter_telemetry(run, leg.leg_id, MASK, lambda _: 4.0, 0.0, until)
        run = build.alter_telemetry(run, leg.leg_id, CLOCK, lambda _: mhz, 0.0, until)
    return run


def notes(run: Any) -> list[str]:
    return list(told(Evidence.of(run)))


def missing(run: Any) -> list[str]:
    return list(sentences(Evidence.of(run)))


def test_shares_clocks_and_the_limit_are_a_note(build: Any) -> None:
    """20 of 40 samples are capped and one more is beside them: 63 of 120 at c2, of 240 at both levels."""
    run = capped(build, build.run(), 1700.0)
    arm = "{} in 26 % of 240 busy samples, mean SM clock 1910 MHz, 1980 MHz outside it"
    expected = f"gpu0 was at its power limit (700 W): {arm.format('candidate')}; {arm.format('oracle')}"
    assert notes(run) == [expected]
    report = judge(run)
    assert report.notes == (expected,)
    for text in (html.render(report), markdown.render(report), terminal.render(report)):
        assert "gpu0 was at its power limit (700 W)" in " ".join(text.split())


def test_that_clocks_are_part_of_the_result_does_not_bind(build: Any) -> None:
    run = capped(build, build.run(), 1700.0)
    expected = (
        "clocks not pinned and gpu0 at its power limit in 52 % of the candidate's and 52 % of the oracle's busy "
        "samples at c2: its clock, and so each arm's draw of power, is part of the result"
    )
    assert missing(run) == [expected]
    assert expected in judge(run).not_binding_because


@pytest.mark.parametrize(
    ("candidate", "oracle", "said"),
    [(1980, 1980, False), (1881, 1881, False), (1880, 1980, True), (1980, 1932, False), (1980, 1930, True)],
    ids=["no cost", "5 % apart", "beyond 5 %", "means 0.98 % apart", "means 1.02 % apart"],
)
def test_a_cap_that_the_checks_would_not_mind_is_a_note_alone(
    build: Any, candidate: float, oracle: float, said: bool
) -> None:
    run = capped(build, build.run(), candidate, 0.4, arm="candidate")
    run = capped(build, run, oracle, 0.4, arm="oracle")
    assert bool(missing(run)) is said
    assert len(notes(run)) == 1


def test_where_caps_explain_nothing_the_findings_speak(build: Any) -> None:
    run = capped(build, build.run(), 1700.0)
    run = build.alter_telemetry(run, build.leg_id(run), LIMIT, lambda _: 600.0)
    assert missing(run) == []
    assert "gpu0 was at its power limit (600 W and 700 W): candidate in 26 %" in notes(run)[0]
    assert "outside" not in notes(run)[0]


def test_an_arm_that_was_never_free_is_named_with_its_levels(build: Any) -> None:
    run = capped(build, build.run(), 1700.0, until=1.0, arm="oracle")
    (note,) = notes(run)
    assert "candidate in 0 % of 240 busy samples, mean SM clock 1980 MHz, 1980 MHz outside it; oracle in 50 %" in note
    assert note.endswith("mean SM clock 1840 MHz, never outside it at c2")


def test_a_limit_that_was_not_sampled_is_the_machines_or_not_recorded(build: Any) -> None:
    run = capped(build, build.run(), 1700.0)
    for leg in run.legs:
        run = build.alter_telemetry(run, leg.leg_id, LIMIT, None)
    assert notes(run)[0].startswith("gpu0 was at its power limit (not recorded): ")
    known = dataclasses.replace(run, machine={"power_limit_gpu0": "650 W"})
    assert notes(known)[0].startswith("gpu0 was at its power limit (650 W): ")


def test_the_highest_power_is_told_where_it_was_read(build: Any) -> None:
    run = capped(build, build.run(), 1700.0)
    leg = next(leg for leg in run.legs if leg.arm == "oracle")
    row = TelemetryRow(leg_id=leg.leg_id, t_ns=leg.start_ns, source="nvml", name="gpu0.power_w", value=698.6)
    (note,) = notes(dataclasses.replace(run, telemetry=(*run.telemetry, row)))
    assert note.endswith("1980 MHz outside it, up to 699 W")
    assert note.count(" W") == 2


def test_without_a_cap_or_without_an_arm_there_is_little_to_say(build: Any) -> None:
    run = build.run()
    assert (notes(run), missing(run)) == ([], [])
    alone = capped(build, run, 1700.0, arm="candidate")
    alone = build.without_legs(alone, *(leg.leg_id for leg in alone.legs if leg.arm == "oracle"))
    assert notes(alone)[0].endswith("; no sample of the oracle")
    assert missing(alone) == []


def test_arms_one_percent_apart_or_one_arm_beyond_five(build: Any) -> None:
    """2020 is 1 % above 2000, exactly; two samples of 1700 are 14 % of the spread and 0.7 % of the mean."""
    for candidate, said in ((2020.0, False), (2021.0, True)):
        run = capped(build, build.run(), candidate, 1.0, arm="candidate")
        assert bool(missing(capped(build, run, 2000.0, 1.0, arm="oracle"))) is said
    for arm in ("candidate", "oracle"):
        assert len(missing(capped(build, build.run(), 1700.0, 0.03, arm=arm))) == 1


@pytest.mark.parametrize("concurrency", [1, 2])
def test_an_arm_whose_clock_was_not_read_is_given_no_share(build: Any, concurrency: int) -> None:
    run = capped(build, build.run(), 1700.0, 0.4, arm="candidate")
    for leg in [leg for leg in run.legs if (leg.arm, leg.concurrency) == ("oracle", concurrency)]:
        run = build.alter_telemetry(run, leg.leg_id, CLOCK, None)
    assert notes(run)[0].endswith(
        "; oracle in 0 % of 120 busy samples, mean SM clock 1980 MHz, 1980 MHz outside it"
    ) is (concurrency == 1)
    assert "never" not in notes(run)[0]
    both = "42 % of the candidate's and 0 % of the oracle's busy"
    assert (both if concurrency == 1 else "42 % of the candidate's busy samples at c2") in missing(run)[0]
