"""Judged A/A gates -> band: what is counted, what is left out, and each gate judged by the others."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import pytest

from gate.calibration import fit
from gate.calibration.apply import Noise, noise
from gate.calibration.history import key_of_run
from gate.calibration.record import BandRecord
from gate.calibration.table import lacks
from gate.checks.evidence import Evidence
from gate.judge import judge
from gate.observe.rundata import RunData
from gate.plan import PlannedLeg
from gate.report.model import Report
from gate.stats import band as bands


@functools.cache
def history(build: Any, gates: int = 8, sd: float = 0.003) -> tuple[tuple[RunData, ...], tuple[Report, ...]]:
    """Runs of equal arms whose legs scatter by `sd`."""
    rng = np.random.default_rng(5)
    runs = [
        dataclasses.replace(build.run(lambda _leg: math.exp(rng.normal(0, sd))), run_id=f"aa-{k}") for k in range(gates)
    ]
    return tuple(runs), tuple(judge(run) for run in runs)


@functools.cache
def fitted(build: Any, **named: Any) -> BandRecord:
    runs, reports = history(build, **named)
    return fit.fit("made-up", key_of_run(runs[0]), reports)


def with_band(build: Any, record: BandRecord | None, speed: float = 1.0) -> RunData:
    run = build.run(lambda leg: speed if leg.arm == "candidate" else 1.0)
    return dataclasses.replace(run, band=record)


def test_the_history_of_a_cell(build: Any) -> None:
    runs, reports = history(build)
    record = fit.fit("made-up", key_of_run(runs[0]), reports)
    cell = record.cell("tpot_median_ms", 2)
    assert cell is not None
    pairs = [fit.pairs(c) for r in reports for c in r.cells if (c.axis, c.concurrency) == ("tpot_median_ms", 2)]
    expected = bands.prior(pairs)
    assert expected is not None
    assert (cell.gates, cell.pairs, cell.void) == (8, 24, 0)
    assert (cell.sd, cell.df, cell.robust) == (expected.sd, expected.df, expected.robust)
    assert cell.sd == pytest.approx(0.003 * math.sqrt(2), rel=0.5)
    assert len(cell.ratios) == 8
    assert sum(cell.verdicts.values()) == 8
    assert cell.verdicts["FAIL"] == 0
    assert [gate.run_id for gate in record.gates] == [f"aa-{k}" for k in range(8)]


def test_a_void_cell_is_left_out_and_counted(build: Any) -> None:
    runs, reports = history(build)
    broken = build.alter_request(runs[3], build.leg_id(runs[3], concurrency=2), 1, prompt_tokens=17)
    record = fit.fit("made-up", key_of_run(runs[0]), (*reports[:3], judge(broken), *reports[4:]))
    cell, other = record.cell("tpot_median_ms", 2), record.cell("tpot_median_ms", 1)
    assert cell is not None
    assert other is not None
    assert (cell.gates, cell.void, cell.pairs, cell.verdicts["VOID"]) == (7, 1, 21, 1)
    assert (other.gates, other.void) == (8, 0)
    assert record.gates[3].verdict == "VOID"


def test_what_a_bound_decided_of_equal_arms_is_counted_as_that(build: Any) -> None:
    """It rests on no prior, so it stays; and it lends the history no pair."""
    runs, reports = history(build)

    def speed(leg: PlannedLeg) -> float:
        slow = 0.8 if leg.repetition == 1 else 1.0
        return slow * (2.0 if leg.arm == "candidate" and leg.concurrency == 2 else 1.0)

    record = fit.fit("made-up", key_of_run(runs[0]), (*reports[:3], judge(build.run(speed)), *reports[4:]))
    cell = record.cell("tpot_median_ms", 2)
    assert cell is not None
    assert (cell.gates, cell.void, cell.pairs) == (7, 1, 21)
    found = judge(build.run(speed)).cells
    assert all(one.bounded for one in found if (one.axis, one.concurrency) == ("tpot_median_ms", 2))
    assert (cell.verdicts["PASS"], cell.verdicts["INCONCLUSIVE"]) == (8, 0)


def test_each_gate_is_judged_with_the_noise_of_the_others(build: Any) -> None:
    """One gate apart from seven quiet ones: by their noise it fails; with it in their history no other is decided."""
    runs, reports = history(build, sd=0.0005)
    apart = judge(build.run(lambda leg: 0.97 if leg.arm == "candidate" else 1.0))
    cell = fit.fit("made-up", key_of_run(runs[0]), (*reports[:2], apart, *reports[3:])).cell("tpot_median_ms", 2)
    assert cell is not None
    assert (cell.verdicts["FAIL"], cell.verdicts["INCONCLUSIVE"]) == (1, 7)
    assert cell.between_gates_sd == pytest.approx(0.03 / math.sqrt(8), rel=0.05)


def test_the_id_is_that_of_the_content(build: Any) -> None:
    record = fitted(build)
    assert record.band_id == fit.band_id(record) == fitted(build).band_id
    assert fitted(build, gates=7).band_id != record.band_id
    again = BandRecord.model_validate_json(record.model_dump_json())
    assert (again, fit.band_id(again)) == (record, record.band_id)


class TestApplied:
    def test_a_valid_band_judges_and_binds(self, build: Any) -> None:
        record = fitted(build)
        report = judge(with_band(build, record))
        assert report.binding, report.not_binding_because
        assert report.band is not None
        assert (report.band.band_id, report.band.gates) == (record.band_id, 8)
        cell = next(c for c in report.cells if (c.axis, c.concurrency) == ("tpot_median_ms", 2))
        known = record.cell("tpot_median_ms", 2)
        assert known is not None
        assert (cell.prior, cell.prior_sd, cell.prior_df) == ("calibrated", known.sd, known.df)

    def test_a_noisy_host_decides_less_and_never_needs_less(self, build: Any) -> None:
        quiet, noisy = fitted(build, sd=0.001), fitted(build, sd=0.015)
        found = {name: judge(with_band(build, band, 0.985)) for name, band in (("quiet", quiet), ("noisy", noisy))}
        assert found["quiet"].verdict.value == "FAIL"
        assert found["noisy"].verdict.value == "INCONCLUSIVE"
        assert {cell.band for report in found.values() for cell in report.cells} == {0.01}

    def test_without_one_the_prior_is_assumed(self, build: Any) -> None:
        report = judge(with_band(build, None))
        assert report.band is None
        assert {cell.prior for cell in report.cells} == {"assumed"}

    def test_gates_of_fewer_pairs_do_not_bind(self, build: Any) -> None:
        record = fitted(build)
        assert {cell.pairs for cell in record.cells} == {24}
        few = record.model_copy(update={"cells": tuple(c.model_copy(update={"pairs": 23}) for c in record.cells)})
        report = judge(with_band(build, few))
        assert report.not_binding_because
        assert all("from 23 pairs, fewer than 24" in why for why in report.not_binding_because)
        assert [lacks(cell) for cell in few.cells[:1]] == [
            "23 pairs, fewer than 24: gates of three repetitions have them"
        ]

    def test_another_driver_leaves_it_assumed_and_is_named(self, build: Any) -> None:
        run = dataclasses.replace(with_band(build, fitted(build)), machine={"cpu": "Made-up 9000", "gpu_driver": "580"})
        report = judge(run)
        assert report.band is None
        assert {cell.prior for cell in report.cells} == {"assumed"}
        assert "gpu_driver is 580 here, – in the band" in report.not_binding_because[0]

    def test_an_unknown_setting_leaves_it_valid_and_is_a_note(self, build: Any) -> None:
        run = with_band(build, fitted(build))
        plain = judge(run)
        setting = "power_limit_gpu0" if run.plan.recipe.gpu else "cpu_governor"
        report = judge(dataclasses.replace(run, machine={**run.machine, setting: "set"}))
        assert (report.band, report.binding, report.cells) == (plain.band, plain.binding, plain.cells)
        assert report.band is not None
        (note,) = set(report.notes) - set(plain.notes)
        assert (
            note
            == f"band {report.band.band_id[:12]} may be of other settings: {setting} is set here, unknown in the band"
        )

    def test_another_version_of_the_oracle_is_found_when_it_answers(self, build: Any) -> None:
        run = build.alter_identity(with_band(build, fitted(build)), "oracle", version="2.0")
        assert "oracle_version is 2.0 here, 1.0 in the band" in "\n".join(judge(run).not_binding_because)

    def test_too_few_gates_judge_but_do_not_bind(self, build: Any) -> None:
        report = judge(with_band(build, fitted(build, gates=7)))
        assert report.band is not None
        assert all("from 7 gates, fewer than 8" in why for why in report.not_binding_because)
        assert len(report.not_binding_because) == 6

    def test_a_cell_that_the_history_does_not_know_is_named(self, build: Any) -> None:
        record = fitted(build)
        kept = tuple(cell for cell in record.cells if (cell.axis, cell.concurrency) != ("ttft_median_ms", 1))
        report = judge(with_band(build, record.model_copy(update={"cells": kept})))
        (why,) = report.not_binding_because
        assert "the noise prior of ttft_median_ms at c1 is assumed" in why

    def test_gates_that_differ_as_a_whole_widen_the_interval(self, build: Any) -> None:
        record = fitted(build)
        cells = tuple(cell.model_copy(update={"between_gates_sd": 0.01}) for cell in record.cells)
        plain, apart = (
            next(c for c in judge(with_band(build, band)).cells if (c.axis, c.concurrency) == ("tpot_median_ms", 2))
            for band in (record, record.model_copy(update={"cells": cells}))
        )
        assert plain.verdict.value == "PASS"
        assert apart.verdict.value == "INCONCLUSIVE"
        assert apart.ratio_low is not None
        assert apart.ratio_low < 0.98

    def test_a_wider_band_than_the_contracts_does_not_bind(self, build: Any) -> None:
        run = dataclasses.replace(build.run(protocol={"band": 0.02}), band=fitted(build))
        assert "band 2 %, above 1 %" in judge(run).not_binding_because

    def test_at_most_three_differences_are_told(self, build: Any) -> None:
        machine = {"cpu": "x", "gpu0": "x", "gpu1": "x", "kernel": "x"}
        evidence = Evidence.of(dataclasses.replace(with_band(build, fitted(build)), machine=machine))
        found: Noise = noise(evidence)
        assert len(found.differences) == 4
        (why,) = found.missing("made-up", ("tpot_median_ms",), (1,))
        assert why.endswith("; 1 more")
