"""Golden: the 35B's step on both arms as `gate profile` recorded it on an H200, and how its delta comes apart.

Run as a module, this writes the two fixtures from the run's windows.
"""

from __future__ import annotations

import json

import compare_profile
import pytest

from gate.observe.rows import ARMS
from gate.profile import store
from gate.profile.conclude import derive
from gate.profile.levers import Drift, attribute, drift_of
from gate.profile.modules import with_modules
from gate.profile.rows import ProfileReport, StepTable
from tests.gate.profile.tables import FIXTURES, RUN_35B, TABLES_35B, fixture, floor, own_us, recorded, unshaped

STEP = {"candidate": (284, 3219.2, 1834.8, 1838.2), "oracle": (1171, 5497.8, 3882.8, 4093.1)}
"""Launches, µs of kernels, own µs, wall µs."""
LEVERS = {
    ("moe_w4a16", "w4a16"): (580.8, 1542.7, -961.9, "launch counts"),
    ("norm_quant_act", "bf16", "routing"): (419.9, 954.8, -534.9, "by family"),
    ("sampler_copies",): (4.0, 189.3, -185.2, "by family"),
    ("fp8",): (457.8, 634.5, -176.7, "launch counts"),
    ("gdn_step", "gdn_conv"): (154.6, 230.0, -75.4, "launch counts"),
    ("attention", "kv_write"): (140.6, 202.5, -61.8, "launch counts"),
    ("w4a16",): (76.9, 129.1, -52.2, "launch counts"),
}
"""Candidate, oracle, delta in own µs, and what it would rest on if nothing were doubtful."""
MODULES = {
    "candidate": {
        "moe_w4a16": "80 launches = 40 mlp.experts.down_proj + 40 mlp.experts.gate_up_proj",
        "w4a16": "1 launches = 1 lm_head",
        "gdn_step": "1 launches a layer in 30 layers = gdn.state",
        "attention": "1 launches a layer in 10 layers = attention.kv",
    },
    "oracle": {
        "moe_w4a16": "80 launches = 40 mlp.experts.down_proj + 40 mlp.experts.gate_up_proj",
        "w4a16": "81 launches = 1 lm_head + 40 mlp.shared_expert.down_proj + 40 mlp.shared_expert.gate_up_proj",
        "bf16": "110 launches = 30 linear_attn.in_proj_ba + 40 mlp.gate + 40 mlp.shared_expert_gate",
        "gdn_step": "1 launches a layer in 30 layers = gdn.state",
        "gdn_conv": "1 launches a layer in 30 layers = gdn.conv_state",
        "attention": "1 + 1 launches a layer in 10 layers = attention.kv",
        "kv_write": "1 launches a layer in 10 layers = attention.kv_write",
    },
}
FP8 = (
    "80 launches = 30 linear_attn.in_proj_qkvz + 30 linear_attn.out_proj + 10 self_attn.o_proj + 10 self_attn.qkv_proj"
)
INSIDE = {
    "linear_attn.in_proj_ba": 7.86,
    "mlp.gate": 41.9,
    "mlp.shared_expert.down_proj": 23.6,
    "mlp.shared_expert.gate_up_proj": 47.2,
    "mlp.shared_expert_gate": 0.164,
    "gdn.conv_state": 2.95,
    "attention.kv_write": 0.0102,
}
"""Of the candidate: modules without a launch of their own, MB."""
FLOORS = {
    "moe_w4a16": (581, 637, 144),
    "norm_quant_act": (420, 50, 11),
    "fp8": (458, 1279, 289),
    "attention": (141, 11, 3),
    "gdn_step": (155, 129, 29),
    "w4a16": (77, 286, 65),
}
"""Family: own µs of the candidate, MB, µs of these at the roof."""
WITHIN = {
    "moe_w4a16": ("mlp.shared_expert.down_proj", "mlp.shared_expert.gate_up_proj"),
    "norm_quant_act": ("linear_attn.in_proj_ba", "mlp.gate", "mlp.shared_expert_gate"),
    "gdn_step": ("gdn.conv_state",),
    "attention": ("attention.kv_write",),
}
"""Which family's launches do what INSIDE names (engine/ops/norm, moe, gdn, attention)."""
BEFORE = "vllm-0.25.0-h200-35b-b1"
"""vLLM's step, recorded the day before."""


@pytest.fixture(scope="module")
def run() -> ProfileReport:
    return derive(store.read(RUN_35B))


@pytest.fixture(scope="module")
def tables() -> dict[str, StepTable]:
    return {arm: with_modules(recorded(TABLES_35B[arm], arm=arm), unshaped("35b", 1)) for arm in ARMS}


@pytest.mark.parametrize("arm", ARMS)
def test_the_fixtures_are_the_run_s_steps(run: ProfileReport, tables: dict[str, StepTable], arm: str) -> None:
    """Every kernel with its launches, times, modules and bytes, made through the difference once more."""
    mine, theirs = tables[arm], getattr(run, arm)
    assert [(k.name, k.launches, k.modules, k.nbytes) for k in mine.kernels] == [
        (k.name, k.launches, k.modules, k.nbytes) for k in theirs.kernels
    ]
    for field in ("us", "own_us"):
        assert [getattr(k, field) for k in mine.kernels] == pytest.approx(
            [getattr(k, field) for k in theirs.kernels], abs=1e-6
        )
    assert (mine.wall_us, mine.busy_us) == (pytest.approx(theirs.wall_us), pytest.approx(theirs.busy_us, abs=0.01))


@pytest.mark.parametrize("arm", ARMS)
def test_a_step(tables: dict[str, StepTable], arm: str) -> None:
    found = tables[arm]
    assert found.own_us is not None
    assert found.wall_us is not None
    assert (found.launches, round(found.sum_us, 1), round(found.own_us, 1), round(found.wall_us, 1)) == STEP[arm]


@pytest.mark.parametrize("arm", ARMS)
def test_launches_are_the_layers(tables: dict[str, StepTable], arm: str) -> None:
    """40 layers with a mixture each, 30 with Gated DeltaNet and 10 with attention, and one lm_head."""
    expected = {f"{family}: {text}" for family, text in (MODULES[arm] | {"fp8": FP8}).items()}
    if arm == "candidate":
        expected |= {
            f"{name}: no launch of its own, so it runs inside another kernel; no row counts its {size:g} MB"
            for name, size in INSIDE.items()
        }
    assert set(tables[arm].notes) == expected


def test_the_levers_add_up_to_the_measured_delta(tables: dict[str, StepTable]) -> None:
    """The drift is made up, since the run has no control: what each lever would rest on."""
    found = attribute(tables["candidate"], tables["oracle"], Drift(0.005, "synthetic"))
    assert {
        lever.families: (
            round(lever.candidate_us, 1), round(lever.oracle_us, 1), round(lever.delta_us, 1), lever.proof
        )
        for lever in found.levers
    } == LEVERS  # fmt: skip
    assert (round(found.delta_us, 1), round(found.residual_us, 1)) == (-2255.0, -206.9)
    assert sum(lever.delta_us for lever in found.levers) + found.residual_us == pytest.approx(found.delta_us)


def test_a_shared_expert_inside_the_routed_ones_launch_is_in_their_lever(tables: dict[str, StepTable]) -> None:
    """On the candidate 0 µs of it would be a lever that nothing was spent on."""
    found = attribute(tables["candidate"], tables["oracle"], Drift(0.005, "synthetic"))
    assert all(lever.candidate_us > 0 for lever in found.levers)
    assert found.levers[0].modules == (
        "mlp.experts.down_proj",
        "mlp.experts.gate_up_proj",
        "mlp.shared_expert.down_proj",
        "mlp.shared_expert.gate_up_proj",
    )


def test_one_copy_on_both_arms_is_no_drift(tables: dict[str, StepTable]) -> None:
    """ "Memcpy DtoH", 1.55 and 1.95 µs, was once a drift of 20.52 %."""
    found = drift_of(tables["candidate"], tables["oracle"], "both arms")
    assert found == Drift(None, "both arms: 1 equal kernel, 2 µs a step, 0.036 % of it; a drift takes 10 %")


def test_the_run_is_shown_with_its_two_doubts(run: ProfileReport) -> None:
    assert [(f.code, f.arm) for f in run.findings] == [("not-closed", "oracle"), ("no-drift-control", None)]
    assert run.attribution is not None
    assert {(lever.proof, lever.note) for lever in run.attribution.levers} == {
        (
            "unproven",
            "kernels run 3883 µs of oracle's 4093 µs a step (-5.1 %); expected within 1 %; no drift control",
        )
    }


def test_whose_time_it_is_in_vllm_s_levers(run: ProfileReport) -> None:
    """Half of the experts' lever is shared experts, half of the sampler's what is left of their gate."""
    assert run.oracle is not None
    theirs = run.oracle.kernels
    shared = [k for k in theirs if k.modules and all("shared_expert." in module for module in k.modules)]
    assert [(k.launches, round(k.own_us or 0.0)) for k in shared] == [(80, 769)]
    assert round(own_us(theirs, "MulFunctor", "sigmoid_kernel_cuda")) == 102
    assert sum(k.launches for k in theirs if k.family in ("norm_quant_act", "bf16", "routing")) == 632


def test_vllm_s_long_rounds_differ_by_as_much_as_is_missing() -> None:
    long_us = store.read(RUN_35B).arms[1].wall.long_us
    assert round((max(long_us) - min(long_us)) / 128) == 198


@pytest.mark.parametrize("family", FLOORS)
def test_the_distance_to_the_roof(family: str) -> None:
    found = floor(RUN_35B, family, WITHIN.get(family, ()))
    assert tuple(round(number) for number in found) == FLOORS[family]


def test_beside_the_table_of_the_day_before_only_what_inductor_made_is_off(capsys: pytest.CaptureFixture[str]) -> None:
    """12.8 % longer in nine launches fewer: 73 of the 79 µs are norms with FP8 quantisation."""
    assert compare_profile.main([str(RUN_35B), str(FIXTURES / f"{BEFORE}.json")]) == 1
    off = [line.split() for line in capsys.readouterr().out.splitlines() if line.endswith("<-")]
    assert [(line[0], *line[3:5], line[-2]) for line in off] == [("norms,", "322", "331", "1.128")]
    now, then = (
        {name: (us, launches) for us, launches, name in fixture(table)["rows"]}
        for table in (TABLES_35B["oracle"], BEFORE)
    )
    sums = [
        sum(us for name, (us, _) in rows.items() if name.startswith(("triton_", "_fused_qk"))) for rows in (now, then)
    ]
    assert round(sums[0] - sums[1]) == 79
    name = "triton_red_fused__to_copy_add_clamp_copy__cutlass_scaled_mm_fused_add_rms_norm_mul_reciprocal_"
    pairs = [(now[f"{name}4"], then[f"{name}4"]), (now[f"{name}2"], then[f"{name}3"])]
    assert [tuple(round(us / n, 1) for us, n in pair) for pair in pairs] == [(5.0, 3.6), (7.1, 3.5)]
    assert [pair[0][1] for pair in pairs] == [pair[1][1] for pair in pairs] == [30, 9]
    assert round(sum(new - old for (new, _), (old, _) in pairs)) == 73


def about(arm: str, what: str) -> str:
    return (
        f"Recorded by gate profile on one NVIDIA H200, the {arm} of results/h200/{RUN_35B.name}: {what}, "
        "Qwen3.6-35B-A3B shape in nvidia's ModelOpt MIXED_PRECISION layout with random weights, FP8 KV, batch 1, "
        "prompts of 1024 tokens. CUPTI through torch.profiler; each row is (136 output tokens - 8) / 128: µs per step, "
        "launches per step, kernel name. own_us, in the order of the rows, is without what an earlier kernel covers; "
        "wall_us is untraced. The run has the windows; tests make two windows whose difference is these rows."
    )


def write() -> None:
    data = store.read(RUN_35B)
    report, commit = derive(data), data.file.machine["gate_commit"][:7]
    for arm, what in (("candidate", f"this project's engine at commit {commit}"), ("oracle", "vLLM 0.25.0")):
        table: StepTable = getattr(report, arm)
        head = {
            "about": about(arm, what),
            "device": table.device,
            "batch": table.batch,
            "wall_us": table.wall_us,
            "own_us": [k.own_us for k in table.kernels],
        }
        fields = ",\n".join(f' "{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in head.items())
        rows = ",\n  ".join(json.dumps([k.us, k.launches, k.name], ensure_ascii=False) for k in table.kernels)
        (FIXTURES / f"{TABLES_35B[table.arm]}.json").write_text(f'{{\n{fields},\n "rows": [\n  {rows}\n ]\n}}\n')


if __name__ == "__main__":
    write()
