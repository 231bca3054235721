"""Attribution: parts that add up, what each rests on, the drift, and the recorded worked example."""

from __future__ import annotations

import pytest

from gate.observe.rows import Arm
from gate.profile import summary
from gate.profile.levers import Drift, attribute, drift_of
from gate.profile.modules import with_modules
from gate.profile.rows import StepKernel, StepTable
from tests.gate.profile.tables import census, fixture, recorded

STILL = Drift(0.0, "synthetic")


def table(
    arm: Arm, rows: list[tuple[str, str, float, float, tuple[str, ...]]], wall_us: float | None = None
) -> StepTable:
    """rows: (name, family, launches, µs, modules)."""
    kernels = tuple(
        StepKernel(name=name, family=family, rule="r", launches=n, us=us, modules=modules)
        for name, family, n, us, modules in rows
    )
    return StepTable(arm=arm, name=arm, batch=1, backend="nsys", tool="t", steps=128, wall_us=wall_us, kernels=kernels)


def example() -> tuple[StepTable, StepTable]:
    """tests/gate/profile/fixtures/worked-example-gb10-27b.json, whose header says what in it was recorded."""
    data = fixture("worked-example-gb10-27b")
    made = [
        table(
            arm,
            [(r["name"], r["family"], r["launches"], r["us"], tuple(r["modules"])) for r in data[arm]],
            data["wall_us"][arm],
        )
        for arm in ("candidate", "oracle")
    ]
    return made[0], made[1]


def test_the_worked_example_comes_out() -> None:
    """98.906 - 81.577 ms: +8.64 lm_head/Marlin, +7.61 FP8 tower, +0.05 split-K, +1.03 rest = +17.33 ms a step."""
    ours, theirs = example()
    found = attribute(ours, theirs, drift_of(ours, theirs, "both arms"))
    assert found.delta_us == pytest.approx(17_329.0)
    deltas = {lever.name: lever.delta_us / 1e3 for lever in found.levers}
    lm_head = deltas.pop("BF16 products, split-K (lm_head) + W4A16 products (lm_head)")
    tower = deltas.pop("FP8 W8A8 products")
    split_k = deltas.pop("BF16 products, split-K (linear_attn.in_proj_ba)")
    assert (round(lm_head, 2), round(tower, 2), round(split_k, 2)) == (8.64, 7.61, 0.05)
    assert set(deltas) == {"W4A16 products (mlp.down_proj, mlp.gate_up_proj)", "norms, quantisation, activations"}
    assert sum(deltas.values()) == pytest.approx(1.03, abs=5e-3)
    assert sum(lever.delta_us for lever in found.levers) + found.residual_us == pytest.approx(found.delta_us)
    assert found.residual_us == pytest.approx(-0.3, abs=0.01)
    assert found.levers[0].modules == ("lm_head",)  # one arm's BF16 product and the other's Marlin are one lever
    assert found.levers[0].proof == "launch counts"


def test_the_example_s_equal_kernel_is_its_drift() -> None:
    """One Marlin kernel with equal name and launches moved by 0.58 %: nothing below that is quoted."""
    ours, theirs = example()
    drift = drift_of(ours, theirs, "both arms")
    assert drift.share == pytest.approx(0.0058, abs=1e-4)
    proofs = {lever.modules: lever.proof for lever in attribute(ours, theirs, drift).levers}
    assert proofs[("mlp.down_proj", "mlp.gate_up_proj")] == "below drift"
    assert proofs[("lm_head",)] == "launch counts"


def test_27b_against_the_composed_step_of_the_engine() -> None:
    """Every µs is in a lever: fused launches count where their work went."""
    theirs = with_modules(recorded("vllm-0.25.0-h200-27b-b1"), census("27b", 1))
    ours = with_modules(recorded("engine-h200-27b-b1-composed", arm="candidate"), census("27b", 1))
    found = attribute(ours, theirs, Drift(0.005, "synthetic"))
    assert found.delta_us == pytest.approx(-3171.4, abs=0.1)
    assert found.residual_us == pytest.approx(0.0, abs=1e-6)
    levers = {lever.families: (round(lever.delta_us), lever.proof) for lever in found.levers}
    assert levers == {
        ("w4a16",): (-1806, "launch counts"),
        ("norm_quant_act", "bf16"): (-810, "by family"),
        ("gdn_step", "gdn_conv"): (-206, "launch counts"),
        ("attention",): (-129, "launch counts"),
        ("fp8",): (-112, "launch counts"),
        ("sampler_copies",): (-62, "by family"),
        ("kv_write",): (-46, "launch counts"),
    }


def test_the_residual_is_what_kernels_do_not_explain() -> None:
    """Candidate 100 µs of kernels in 130 µs, oracle 90 in 95: 25 of the 35 µs of delta are time without a kernel."""
    ours = table("candidate", [("k", "attention", 16, 100.0, ("attention.kv",))], wall_us=130.0)
    theirs = table("oracle", [("k", "attention", 16, 90.0, ("attention.kv",))], wall_us=95.0)
    found = attribute(ours, theirs, STILL)
    assert (found.measured, found.delta_us, found.residual_us) == ("wall", 35.0, 25.0)
    assert attribute(ours.model_copy(update={"wall_us": None}), theirs, STILL).measured == "kernels"


def test_levers_are_made_of_own_times_where_both_arms_have_them() -> None:
    """The candidate's kernels overlap: 160 µs of them in 100 µs, which would make a residual of -60 µs."""
    ours = table("candidate", [("a", "attention", 16, 80.0, ()), ("b", "fp8", 16, 80.0, ())], wall_us=101.0)
    theirs = table("oracle", [("c", "attention", 16, 70.0, ()), ("d", "fp8", 16, 50.0, ())], wall_us=121.0)
    whole = attribute(ours, theirs, STILL)
    assert whole.residual_us == pytest.approx(-60.0)
    shares = {"a": 80.0, "b": 20.0, "c": 70.0, "d": 50.0}
    ours, theirs = (
        t.model_copy(update={"kernels": tuple(k.model_copy(update={"own_us": shares[k.name]}) for k in t.kernels)})
        for t in (ours, theirs)
    )
    found = attribute(ours, theirs, STILL)
    assert {lever.families: lever.delta_us for lever in found.levers} == {("fp8",): -30.0, ("attention",): 10.0}
    assert found.residual_us == pytest.approx(0.0)
    assert summary.residual_title(found) == "residual (no kernel running, less overlap)"
    walled = [t.model_copy(update={"wall_us": None}) for t in (ours, theirs)]
    assert attribute(walled[0], walled[1], STILL).candidate_us == 100.0


@pytest.mark.parametrize("walls", [(101.0, None), (None, 121.0), (None, None)])
def test_a_delta_is_of_walls_or_of_kernels_and_never_of_both(walls: tuple[float | None, float | None]) -> None:
    """A step without tracing less the sum of a trace's kernels is no difference of two arms."""
    ours = table("candidate", [("a", "attention", 16, 80.0, ())], wall_us=walls[0])
    theirs = table("oracle", [("c", "attention", 16, 70.0, ())], wall_us=walls[1])
    found = attribute(ours, theirs, STILL)
    assert (found.measured, found.candidate_us, found.oracle_us) == ("kernels", 80.0, 70.0)
    assert found.residual_us == pytest.approx(0.0)


def test_idle_time_stands_beside_own_times_alone() -> None:
    """Kernels' whole times count their overlap, which idle time beside them would count once more."""
    ours, theirs = (
        one.model_copy(update={"kernels": tuple(k.model_copy(update={"own_us": None}) for k in one.kernels)})
        for one in idle_tables(10.0, 39.0)
    )
    assert all(lever.families for lever in attribute(ours, theirs, STILL).levers)


@pytest.mark.parametrize(
    ("name", "family", "modules", "drift", "doubtful", "proof"),
    [
        ("b", "attention", ("attention.kv",), STILL, "", "launch counts"),
        ("a", "attention", ("attention.kv",), STILL, "", "same kernels"),
        ("b", "norm_quant_act", (), STILL, "", "by family"),
        ("b", "other", (), STILL, "", "unproven"),
        ("b", "attention", (), STILL, "", "unproven"),
        ("b", "attention", ("attention.kv",), Drift(None, "none"), "", "unproven"),
        ("b", "attention", ("attention.kv",), STILL, "kernels run half the wall time", "unproven"),
        ("b", "attention", ("attention.kv",), Drift(0.25, "x"), "", "below drift"),
        ("b", "attention", ("attention.kv",), Drift(0.19, "x"), "", "launch counts"),
    ],
)  # fmt: skip
def test_what_a_lever_rests_on(
    name: str, family: str, modules: tuple[str, ...], drift: Drift, doubtful: str, proof: str
) -> None:
    """80 against 100 µs; a fifth is the boundary of the drift."""
    ours = table("candidate", [(name, family, 16, 80.0, modules)])
    theirs = table("oracle", [("a", family, 16, 100.0, modules)])
    (lever,) = attribute(ours, theirs, drift, doubtful=doubtful).levers
    assert lever.proof == proof
    assert lever.delta_us == -20.0  # marked, never dropped


def test_one_kernel_that_changed_is_not_taken_for_drift() -> None:
    """Four equal kernels, one of them 30 % slower: the drift is the others' 1 %."""
    rows = [("a", 400.0, 404.0), ("b", 300.0, 303.0), ("c", 200.0, 202.0), ("d", 100.0, 130.0)]
    ours = table("candidate", [(name, "attention", 16, after, ()) for name, _, after in rows])
    theirs = table("oracle", [(name, "attention", 16, before, ()) for name, before, _ in rows])
    assert drift_of(ours, theirs, "x").share == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("moved", "share"),
    [
        ([(40.0, 1.01), (40.0, 1.02), (20.0, 1.10)], 0.02),
        ([(40.0, 1.01), (40.0, 0.98), (20.0, 1.10)], 0.02),
        ([(50.0, 1.01), (50.0, 1.02)], 0.01),
        ([(0.4, 1.01), (0.4, 1.02), (0.2, 1.10)], 0.02),
    ],
    ids=["the middle one", "either way", "half of the time is enough", "below a microsecond"],
)
def test_the_drift_is_the_median_of_the_time(moved: list[tuple[float, float]], share: float) -> None:
    """moved: µs of each kernel, and by how much one step's is another."""
    one = table("candidate", [(f"k{n}", "fp8", 16, us * by, ()) for n, (us, by) in enumerate(moved)])
    other = table("oracle", [(f"k{n}", "fp8", 16, us, ()) for n, (us, _) in enumerate(moved)])
    assert drift_of(one, other, "two").share == pytest.approx(share)


def test_what_took_no_time_or_was_launched_in_no_step_has_no_part_in_the_drift() -> None:
    """A row of what ran equally often in both windows moves as it likes; a kernel of 0 µs has no share at all."""
    ours, theirs = (
        table(arm, [("k", "fp8", 16, us, ()), ("(both)", "other", 0, rest, ()), ("empty", "other", 1, 0.0, ())])
        for arm, us, rest in (("candidate", 101.0, 400.0), ("oracle", 100.0, 300.0))
    )
    found = drift_of(ours, theirs, "two")
    assert (found.share, found.source) == (pytest.approx(0.01), "two: 1 equal kernel, 100 µs a step")


@pytest.mark.parametrize(("equal_us", "is_control"), [(99.0, False), (100.0, True)])
def test_few_equal_kernels_are_no_control(equal_us: float, is_control: bool) -> None:
    """A copy that both arms do, beside kernels of their own; a tenth of the longer step is the boundary."""
    ours = table("candidate", [("copy", "sampler_copies", 1, equal_us, ()), ("a", "attention", 16, 300.0, ())])
    theirs = table(
        "oracle", [("copy", "sampler_copies", 1, equal_us, ()), ("b", "attention", 16, 1000.0 - equal_us, ())]
    )
    for one, other in ((ours, theirs), (theirs, ours)):
        found = drift_of(one, other, "both arms")
        assert found.share == (0.0 if is_control else None)
        assert found.source.startswith(f"both arms: 1 equal kernel, {equal_us:.0f} µs a step")
        assert is_control or found.source.endswith(", 9.9 % of it; a drift takes 10 %")


def test_a_folded_shared_expert_goes_where_the_routed_ones_are() -> None:
    """One arm has two launches of shared experts among its W4A16 products, and an lm_head, which stays alone."""
    routed, head = ("mlp.experts.down_proj",), ("lm_head",)
    shared = ("mlp.shared_expert.down_proj",)
    ours = table("candidate", [("g", "moe_w4a16", 40, 50.0, routed), ("h", "w4a16", 1, 8.0, head)])
    theirs = table(
        "oracle",
        [("m", "moe_w4a16", 40, 70.0, routed), ("s", "w4a16", 40, 60.0, shared), ("l", "w4a16", 1, 9.0, head)],
    )
    for one, other, sign in ((ours, theirs, 1), (theirs, ours, -1)):
        found = attribute(one, other, STILL)
        assert {lever.modules: sign * lever.delta_us for lever in found.levers} == {
            (*routed, *shared): -80.0,
            head: -1.0,
        }
    kept = attribute(theirs, theirs, STILL)
    assert (shared in {lever.modules for lever in kept.levers}) is True  # both launch it: a lever of its own


def test_kernels_with_other_launch_counts_are_no_control() -> None:
    ours = table("candidate", [("a", "attention", 16, 100.0, ())])
    theirs = table("oracle", [("a", "attention", 32, 100.0, ())])
    assert drift_of(ours, theirs, "both arms") == Drift(
        None, "both arms: no kernel has equal name and launches on both sides"
    )


def idle_tables(ours_us: float | None, theirs_us: float | None) -> tuple[StepTable, StepTable]:
    """90 and 80 µs of kernels in steps of 100 and 120 µs."""
    made = []
    for arm, us, wall_us, idle_us in (("candidate", 90.0, 100.0, ours_us), ("oracle", 80.0, 120.0, theirs_us)):
        one = table(arm, [("k", "attention", 16, us, ("attention.kv",))], wall_us=wall_us)  # type: ignore[arg-type]
        kernels = tuple(k.model_copy(update={"own_us": us}) for k in one.kernels)
        made.append(one.model_copy(update={"kernels": kernels, "idle_us": idle_us}))
    return made[0], made[1]


def test_time_between_kernels_is_a_lever_where_both_traces_have_it() -> None:
    found = attribute(*idle_tables(10.0, 39.0), STILL)
    (idle,) = [lever for lever in found.levers if not lever.families]
    assert (idle.name, idle.delta_us, idle.proof, idle.nbytes) == ("no kernel running", -29.0, "seen idle", None)
    assert found.residual_us == pytest.approx(-1.0)
    assert summary.residual_title(found) == "residual (step in the trace, less without it)"
    for some in ((None, 39.0), (10.0, None)):
        without = attribute(*idle_tables(*some), STILL)
        assert [lever.families for lever in without.levers] == [("attention",)]
        assert without.residual_us == pytest.approx(-30.0)
    ours, theirs = (one.model_copy(update={"wall_us": None}) for one in idle_tables(10.0, 39.0))
    assert len(attribute(ours, theirs, STILL).levers) == 1  # kernels against kernels


def test_idle_time_rests_on_what_other_levers_rest_on() -> None:
    assert {lever.proof for lever in attribute(*idle_tables(10.0, 39.0), STILL, doubtful="x").levers} == {"unproven"}
    assert attribute(*idle_tables(10.0, 39.0), Drift(None, "none")).levers[0].proof == "unproven"
    assert attribute(*idle_tables(10.0, 10.1), Drift(0.02, "two")).levers[-1].proof == "below drift"
