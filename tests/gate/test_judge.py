"""From raw records to a report: what is PASS, FAIL, INCONCLUSIVE, VOID, and what a VOID takes with it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.errors import StorageError, UsageError
from gate.judge import judge
from gate.observe.rows import Verdict
from gate.plan import PlannedLeg
from gate.report.model import Cell, Report

PRIMARY = ("output_throughput", "tpot_median_ms", "ttft_median_ms")


def cell(report: Report, axis: str, concurrency: int) -> Cell:
    return next(c for c in report.cells if (c.axis, c.concurrency) == (axis, concurrency))


def candidate_at(speed: float, concurrency: int | None = None) -> Any:
    def of(leg: PlannedLeg) -> float:
        mine = leg.arm == "candidate" and concurrency in (None, leg.concurrency)
        return speed if mine else 1.0

    return of


def test_equal_arms_pass_with_ratios_of_one(build: Any) -> None:
    report = judge(build.run())
    assert report.verdict is Verdict.PASS
    assert report.exit_code == 0
    assert report.findings == ()
    assert report.counts == {"PASS": len(report.cells), "FAIL": 0, "INCONCLUSIVE": 0, "VOID": 0}
    assert all(c.ratio == pytest.approx(1) for c in report.cells)
    assert {c.axis for c in report.cells if c.primary} == set(PRIMARY)


def test_a_slow_candidate_fails_and_says_by_how_much(build: Any) -> None:
    report = judge(build.run(candidate_at(0.9)))
    assert report.verdict is Verdict.FAIL
    assert report.exit_code == 1
    assert cell(report, "tpot_median_ms", 2).ratio == pytest.approx(0.9, abs=1e-3)
    assert cell(report, "output_throughput", 1).ratio == pytest.approx(0.9, abs=1e-3)
    assert cell(report, "tpot_median_ms", 2).reasons[0].code == "below-floor"


def test_the_floor_less_the_band_is_the_boundary(build: Any) -> None:
    """Without noise the interval is the prior's alone: half width t(0.975; 6) · 0.5 % · √(4/6) / √3 = 0.577 %."""
    just_above = judge(build.run(candidate_at(0.99 * 1.0060)))
    just_below = judge(build.run(candidate_at(0.99 * 1.0055)))
    at_delta = judge(build.run(candidate_at(0.9901)))
    far_below = judge(build.run(candidate_at(0.9899), protocol={"primary": ("tpot_median_ms",)}))
    assert cell(at_delta, "tpot_mean_ms", 2).verdict is Verdict.INCONCLUSIVE
    assert cell(just_above, "tpot_median_ms", 2).verdict is Verdict.PASS
    assert cell(just_below, "tpot_median_ms", 2).verdict is Verdict.INCONCLUSIVE
    assert cell(just_below, "tpot_median_ms", 2).reasons[0].code == "interval-straddles"
    assert cell(far_below, "tpot_mean_ms", 2).verdict is Verdict.FAIL


def test_many_looks_soften_a_marginal_fail(build: Any) -> None:
    """At a distance where one cell alone fails, twelve primary cells together do not."""
    run = build.run(candidate_at(0.9899), protocol={"concurrency": (1, 2, 3, 4)})
    softened = judge(run)
    assert cell(softened, "tpot_median_ms", 2).verdict is Verdict.INCONCLUSIVE
    assert cell(softened, "tpot_median_ms", 2).reasons[0].code == "multiplicity"
    assert cell(softened, "tpot_mean_ms", 2).verdict is Verdict.FAIL


def test_swapped_arms_give_reciprocal_ratios(build: Any) -> None:
    fast, slow = judge(build.run(candidate_at(1.25))), judge(build.run(candidate_at(0.8)))
    for ahead, behind in zip(fast.cells, slow.cells, strict=True):
        assert ahead.ratio is not None
        assert behind.ratio is not None
        assert ahead.ratio * behind.ratio == pytest.approx(1, abs=1e-4)


def test_a_void_leg_voids_its_own_concurrency_only(build: Any) -> None:
    run = build.run()
    broken = build.alter_request(run, build.leg_id(run, concurrency=2), 1, prompt_tokens=17)
    report = judge(broken)
    assert {c.verdict for c in report.cells if c.concurrency == 2} == {Verdict.VOID}
    assert {c.verdict for c in report.cells if c.concurrency == 1} == {Verdict.PASS}
    assert report.verdict is Verdict.VOID
    assert report.exit_code == 3
    assert sum(report.counts.values()) == len(report.cells)


def test_a_void_cell_carries_reasons_and_no_ratio(build: Any) -> None:
    run = build.run()
    report = judge(build.alter_leg(run, build.leg_id(run), lock_held=False))
    void = [c for c in report.cells if c.verdict is Verdict.VOID]
    assert void
    for c in void:
        assert (c.ratio, c.ratio_low, c.ratio_high, c.candidate_median, c.oracle_median) == (None,) * 5
        assert [r.code for r in c.reasons] == ["lock-lost"]


def test_a_finding_about_a_family_leaves_the_other_axes(build: Any) -> None:
    run = build.run()
    leg = build.leg_id(run, concurrency=1)
    for index in range(2):
        row = next(r for r in run.requests if (r.leg_id, r.index) == (leg, index))
        flushed = (row.last_token_ns,) * 8
        run = build.alter_request(run, leg, index, token_times_ns=flushed, first_token_ns=flushed[0])
    report = judge(run)
    assert cell(report, "ttft_mean_ms", 1).verdict is Verdict.VOID
    assert cell(report, "output_throughput", 1).verdict is Verdict.PASS
    assert cell(report, "ttft_mean_ms", 2).verdict is Verdict.PASS


def test_fail_outranks_void(build: Any) -> None:
    run = build.run(candidate_at(0.8))
    report = judge(build.alter_leg(run, build.leg_id(run, concurrency=1), lock_held=False))
    assert report.counts["VOID"]
    assert report.verdict is Verdict.FAIL


def test_a_missing_leg_is_inconclusive_never_a_pass(build: Any) -> None:
    run = build.run()
    report = judge(dataclasses.replace(build.without_legs(run, build.leg_id(run)), finished_at=None))
    assert not report.complete
    assert not report.binding
    assert cell(report, "tpot_median_ms", 2).verdict is Verdict.INCONCLUSIVE
    assert cell(report, "tpot_median_ms", 2).reasons[0].code == "legs-missing"
    assert cell(report, "tpot_median_ms", 1).verdict is Verdict.PASS
    assert report.exit_code == 2


def test_one_arm_alone_is_no_evidence(build: Any) -> None:
    run = build.run()
    candidate = [leg.leg_id for leg in run.legs if leg.arm == "candidate"]
    report = judge(build.without_legs(run, *candidate))
    assert {c.verdict for c in report.cells} == {Verdict.INCONCLUSIVE}
    assert {c.ratio for c in report.cells} == {None}


def test_a_run_without_legs_still_has_all_its_cells(build: Any) -> None:
    run = build.run()
    empty = judge(dataclasses.replace(run, legs=(), requests=(), identities=(), finished_at=None))
    assert len(empty.cells) == len(judge(run).cells)
    assert empty.verdict is Verdict.INCONCLUSIVE


def test_an_unknown_primary_axis_names_the_nearest(build: Any) -> None:
    with pytest.raises(UsageError, match="did you mean tpot_median_ms"):
        judge(build.run(protocol={"primary": ("tpot_median",)}))


def test_a_p99_of_few_requests_is_declared_in_vain(build: Any) -> None:
    report = judge(build.run(protocol={"primary": ("ttft_p99_ms",)}))
    assert cell(report, "ttft_p99_ms", 1).ratio is None
    assert report.verdict is Verdict.INCONCLUSIVE


def test_one_odd_repetition_is_named(build: Any) -> None:
    """4 % off in one of three moves the mean of logs by 1.4 % and the medians not at all."""

    def lame(leg: PlannedLeg) -> float:
        return 0.96 if (leg.arm, leg.repetition) == ("candidate", 2) else 1.0

    report = judge(build.run(lame))
    assert cell(report, "tpot_median_ms", 1).ratio == pytest.approx(1)
    assert cell(report, "tpot_median_ms", 1).verdict is Verdict.INCONCLUSIVE
    assert cell(report, "tpot_median_ms", 1).reasons[0].code == "estimates-disagree"


def test_records_of_another_run_are_refused(build: Any) -> None:
    run = build.run()
    foreign = run.legs[0].model_copy(update={"leg_id": "999-oracle-c9-r9"})
    with pytest.raises(StorageError, match="does not know"):
        judge(dataclasses.replace(run, legs=(*run.legs, foreign)))
    with pytest.raises(StorageError, match="twice"):
        judge(dataclasses.replace(run, legs=(*run.legs, run.legs[0])))


def test_preflight_findings_are_carried_and_keep_the_grid_from_binding(build: Any) -> None:
    noted = dataclasses.replace(build.run(), preflight=(build.finding(code="clocks-unpinned", message="clocks float"),))
    report = judge(noted)
    assert report.verdict is Verdict.PASS
    assert [f.code for f in report.findings] == ["clocks-unpinned"]
    assert "preflight: clocks float" in report.not_binding_because


def test_judging_is_pure(build: Any) -> None:
    run = build.run(candidate_at(0.97))
    assert judge(run) == judge(run)


class TestTokens:
    def differ(self, build: Any, run: Any, index: int = 0, position: int = 3) -> tuple[Any, tuple[int, int]]:
        leg = build.leg_id(run)
        row = next(r for r in run.requests if (r.leg_id, r.index) == (leg, index))
        ids = (*row.token_ids[:position], 7777, *row.token_ids[position + 1 :])
        return build.alter_request(run, leg, index, token_ids=ids), (7777, row.token_ids[position])

    def judged(self, build: Any, **margin: Any) -> Any:
        run, (ours, theirs) = self.differ(build, build.run())
        fields = {
            "concurrency": 2,
            "repetition": 1,
            "index": 0,
            "position": 3,
            "candidate_id": ours,
            "oracle_id": theirs,
        }
        run = dataclasses.replace(run, margins=(build.margin(**fields | margin),))
        return judge(run).tokens[1]

    def test_equal_tokens_are_exact(self, build: Any) -> None:
        tokens = judge(build.run()).tokens
        assert [t.verdict for t in tokens] == [Verdict.PASS, Verdict.PASS]
        assert [(t.sequences, t.exact) for t in tokens] == [(6, 6), (12, 12)]
        assert tokens[0].max_margin_nats is None

    @pytest.mark.parametrize("margin", [-0.5, 0.0, 0.25])
    def test_a_margin_within_the_bound_is_a_near_tie(self, build: Any, margin: float) -> None:
        found = self.judged(build, margin_nats=margin)
        assert (found.near_tie, found.diverged, found.exact, found.verdict) == (1, 0, 11, Verdict.PASS)
        assert found.max_margin_nats == margin

    def test_a_margin_above_the_bound_is_a_difference(self, build: Any) -> None:
        found = self.judged(build, margin_nats=0.2501)
        assert (found.diverged, found.verdict) == (1, Verdict.FAIL)

    def test_outside_the_oracles_top_is_a_difference(self, build: Any) -> None:
        assert self.judged(build, margin_nats=None, outside_top=True).verdict is Verdict.FAIL

    def test_no_answer_is_undecided(self, build: Any) -> None:
        found = self.judged(build, margin_nats=None)
        assert (found.unjudged, found.verdict) == (1, Verdict.INCONCLUSIVE)

    def test_a_margin_for_other_ids_does_not_count(self, build: Any) -> None:
        assert self.judged(build, margin_nats=0.0, candidate_id=5).unjudged == 1

    def test_diverged_tokens_fail_the_grid(self, build: Any) -> None:
        run, (ours, theirs) = self.differ(build, build.run())
        fields = {
            "concurrency": 2,
            "repetition": 1,
            "index": 0,
            "position": 3,
            "candidate_id": ours,
            "oracle_id": theirs,
        }
        report = judge(dataclasses.replace(run, margins=(build.margin(**fields, margin_nats=3.0),)))
        assert report.verdict is Verdict.FAIL
        assert report.divergences[0].margin_nats == 3.0

    def test_a_fault_of_timing_leaves_tokens_valid(self, build: Any) -> None:
        run = build.run()
        report = judge(build.alter_leg(run, build.leg_id(run), host_load_foreign_cpu_s=9.0))
        assert report.tokens[1].verdict is Verdict.PASS
        assert cell(report, "tpot_median_ms", 2).verdict is Verdict.VOID

    def test_a_fault_of_identity_does_not(self, build: Any) -> None:
        run = build.run()
        report = judge(build.alter_leg(run, build.leg_id(run), identity_after="other"))
        assert report.tokens[1].verdict is Verdict.VOID
        assert report.tokens[0].verdict is Verdict.PASS

    def test_servers_without_token_ids_leave_tokens_undecided(self, build: Any) -> None:
        run = build.run()
        mute = tuple(r.model_copy(update={"token_ids": None}) for r in run.requests)
        report = judge(dataclasses.replace(run, requests=mute))
        assert {t.verdict for t in report.tokens} == {Verdict.INCONCLUSIVE}
        assert report.tokens[0].reasons[0].code == "tokens-unread"


class TestBinding:
    def reasons(self, run: Any) -> str:
        return "\n".join(judge(run).not_binding_because)

    def test_a_full_run_lacks_only_the_calibrated_band(self, build: Any) -> None:
        assert self.reasons(build.run()) == (
            "the noise prior is assumed for want of an A/A history; gate calibrate --recipe made-up records one"
        )

    @pytest.mark.parametrize(
        ("tables", "said"),
        [
            ({"protocol": {"repetitions": 2}}, "2 repetitions"),
            ({"gpu": False}, "no GPU"),
        ],
    )
    def test_less_than_the_protocol(self, build: Any, tables: Any, said: str) -> None:
        assert said in self.reasons(build.run(**tables))

    @pytest.mark.parametrize(
        ("key", "said"),
        [
            ("version", "does not report its version"),
            ("prefix_caching", "whether prefix caching is off"),
            ("kv_cache_dtype", "does not report its KV cache dtype, it says None"),
        ],
    )
    def test_what_an_arm_does_not_say(self, build: Any, key: str, said: str) -> None:
        assert said in self.reasons(build.alter_identity(build.run(), "oracle", **{key: None}))

    @pytest.mark.parametrize(
        ("arm", "changes", "said"),
        [
            ("candidate", {"kind": "url"}, "attached URL"),
            ("oracle", {"kind": "engine"}, "not the pinned vLLM"),
            ("oracle", {"checkpoint_digest": "d2"}, "different copies"),
            ("candidate", {"checkpoint_digest": None}, "no digest"),
        ],
    )
    def test_arms(self, build: Any, arm: str, changes: Any, said: str) -> None:
        run = build.run()
        planned = getattr(run.plan, arm).model_copy(update=changes)
        assert said in self.reasons(dataclasses.replace(run, plan=run.plan.model_copy(update={arm: planned})))

    def test_a_client_of_unknown_cost(self, build: Any) -> None:
        assert "client's own cost" in self.reasons(dataclasses.replace(build.run(), client=None))


def test_a_good_run_with_a_minimum_of_requests_has_no_finding(build: Any) -> None:
    run = build.run(workload={"min_requests_per_leg": 5})
    assert {(leg.concurrency, leg.requests) for leg in run.plan.legs} == {(1, 5), (2, 6)}
    report = judge(run)
    assert (report.verdict, report.findings) == ("PASS", ())
