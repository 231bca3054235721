"""docs/profile.md's two blocks are what the code prints for the recorded run; run as a module, this writes them."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import compare_profile
import pandas as pd
import pytest

from gate.profile import store, table
from gate.profile.conclude import derive
from gate.profile.rows import ProfileReport, StepKernel, StepTable
from tests.gate.profile.tables import FIXTURES, RESULTS, RUN_27B, RUN_35B, floor, own_us

PAGE = Path(__file__).resolve().parents[3] / "docs" / "profile.md"
END = "<!-- end -->"
TABLE = FIXTURES / "vllm-0.25.0-h200-27b-b1.json"
GATES = {
    RUN_27B: RESULTS / "h200-x2/20261130T092055Z-qwen3.6-27b-nvfp4-synthetic-3a955dc8",
    RUN_35B: RESULTS / "h200/20261130T063149Z-qwen3.6-35b-a3b-nvfp4-synthetic-b1f405f0",
}
"""Of the same model on the same host, started some minutes before the profile."""


def report(run: Path = RUN_27B) -> ProfileReport:
    return derive(store.read(run))


def arms(run: Path = RUN_27B) -> tuple[StepTable, StepTable]:
    found = report(run)
    assert found.candidate is not None
    assert found.oracle is not None
    return found.candidate, found.oracle


def comparison() -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert compare_profile.main([str(RUN_27B), str(TABLE)]) == 0
    return out.getvalue()


def blocks() -> dict[str, str]:
    """Begin of a block's marker -> its text."""
    made = {"<!-- example: ": table.render(report(), width=118), "<!-- comparison: ": comparison()}
    return {begin: f"```\n{text}```\n" for begin, text in made.items()}


def words() -> str:
    """The page without its line breaks, so that a sentence is found wherever it is broken."""
    return " ".join(PAGE.read_text().split())


def test_the_page_shows_what_the_code_prints() -> None:
    page = PAGE.read_text()
    for begin, text in blocks().items():
        assert page[page.index(begin) :].partition("\n")[2].partition(END)[0] == text


def of(kernels: tuple[StepKernel, ...], *families: str) -> tuple[StepKernel, ...]:
    return tuple(k for k in kernels if k.family in families)


def launches(kernels: tuple[StepKernel, ...]) -> int:
    return round(sum(k.launches for k in kernels))


def test_each_lever_of_the_example_has_its_words() -> None:
    found = report().attribution
    assert found is not None
    page = words()
    reading = page.partition("Reading it: ")[2].partition("What is left on")[0]
    assert re.findall(r"\*\*[^*]*, (-\d+)\.\*\*", reading) == [
        f"{us:.0f}" for us in (*(lever.delta_us for lever in found.levers), found.residual_us)
    ]
    assert f"the candidate's step is {-found.delta_us:.0f} µs shorter, and six levers" in reading
    assert len(found.levers) == 6
    assert f"and {100 * found.levers[0].delta_us / found.delta_us:.0f} % of the delta" in reading
    assert f"Without the residual the levers are {found.delta_us - found.residual_us:.0f} µs." in reading


def test_why_nothing_of_the_example_is_proven() -> None:
    ours, theirs = arms()
    for arm in (ours, theirs):
        assert arm.own_us is not None
        assert arm.wall_us is not None
    page = words()
    missing = theirs.wall_us - theirs.own_us  # type: ignore[operator]
    assert f"its kernels run {theirs.own_us:.0f} of {theirs.wall_us:.0f} µs" in page
    assert (
        f"for the other {missing:.0f} µs, {100 * missing / theirs.wall_us:.1f} %, the device waits for the host" in page
    )  # type: ignore[operator]
    over = ours.own_us - ours.wall_us  # type: ignore[operator]
    assert f"as the candidate's does with {100 * over / ours.wall_us:.1f} %" in page  # type: ignore[operator]
    assert f"{missing:.0f} µs without a kernel on vLLM; -{over:.0f} on the candidate" in page
    long_us = store.read(RUN_27B).arms[1].wall.long_us
    assert f"vLLM's three long rounds differ by {(max(long_us) - min(long_us)) / 128:.0f} µs a step" in page


def test_the_words_about_the_levers_fit_the_kernels() -> None:
    ours, theirs = (arm.kernels for arm in arms())
    page = words()
    marlin, mine = of(theirs, "w4a16"), of(ours, "w4a16")
    assert launches(marlin) == launches(mine) == 129
    assert f"Marlin takes {own_us(marlin) / 129:.1f} µs a launch" in page
    assert f"ours {own_us(mine) / 129:.1f} of own time, at 78 %" in page
    assert launches(of(theirs, "norm_quant_act", "bf16")) == 546
    assert launches(of(ours, "norm_quant_act", "bf16")) == 129
    swiglu = tuple(k for k in theirs if "silu_slice" in k.name)
    assert (launches(swiglu), round(own_us(swiglu))) == (64, 95)
    assert {launches(of(arm, "fp8")) for arm in (ours, theirs)} == {128}
    assert round(own_us(of(theirs, "attention", "kv_write"))) == 325
    assert (round(own_us(of(theirs, "kv_write"))), round(own_us(theirs, "FlashAttnFwdCombine"))) == (70, 35)
    assert [round(own_us(of(theirs, family))) for family in ("gdn_conv", "gdn_step")] == [118, 266]
    assert round(own_us(of(ours, "gdn_step", "gdn_conv"))) == 295
    assert [launches(of(arm, "sampler_copies")) for arm in (theirs, ours)] == [47, 2]


@pytest.mark.parametrize(
    ("run", "walls", "tpots", "levers", "of_gate"),
    [
        (RUN_27B, ("5.910", "9.263"), ("5.919", "8.941"), -3023, -3022),
        (RUN_35B, ("1.838", "4.093"), ("1.838", "3.772"), -2048, -1933),
    ],
    ids=["27b", "35b"],
)
def test_a_step_of_the_profile_beside_tpot_of_a_gate(
    run: Path, walls: tuple[str, str], tpots: tuple[str, str], levers: int, of_gate: int
) -> None:
    """vLLM's is 0.32 ms longer here on both models, ours is not."""
    steps = [arm.wall_us for arm in arms(run)]
    assert tuple(f"{us / 1e3:.3f}" for us in steps if us is not None) == walls
    cells = pd.read_parquet(GATES[run] / "cells.parquet").set_index(["axis", "concurrency"])
    cell = cells.loc[("tpot_median_ms", 1)]
    found = [pd.Series(cell[f"{arm}_values"]).median() for arm in ("candidate", "oracle")]
    assert tuple(f"{ms:.3f}" for ms in found) == tpots
    assert round(1e3 * (found[0] - found[1])) == of_gate
    more = [us / 1e3 - ms for us, ms in zip(steps, found, strict=True) if us is not None]
    assert abs(more[0]) < 0.01
    assert round(128 * more[1]) == 41
    attribution = report(run).attribution
    assert attribution is not None
    assert round(attribution.delta_us - attribution.residual_us) == levers
    page = words()
    assert (
        f"{levers} µs. In the gate of the same host TPOT differs by {of_gate}" in page
        or f"{levers} and {of_gate}" in page
    )
    for mine, theirs in zip(walls, tpots, strict=True):
        assert re.search(rf"{mine}( ms a step)? against( a TPOT of)? {theirs}", page)


def test_the_gates_ran_on_the_profiles_hosts() -> None:
    for run, gate in GATES.items():
        (theirs,) = {json.loads((gate / "run.json").read_text())["machine"]["boot_id"]}
        assert store.read(run).file.machine["boot_id"] == theirs
    ended = json.loads((GATES[RUN_27B] / "complete.json").read_text())["finished_at"]
    assert store.read(RUN_27B).file.started_at < ended  # its second look was beside the profile


def test_the_words_below_the_comparison_fit_it() -> None:
    ours, theirs = compare_profile.profiled(RUN_27B, "oracle")[1], compare_profile.recorded(TABLE)[1]
    here, there = compare_profile.by_family(ours), compare_profile.by_family(theirs)
    ratios = {family: here[family][0] / there[family][0] - 1 for family in there}
    assert here.keys() == there.keys()
    assert max(abs(ratio) for ratio in ratios.values()) < 0.02
    assert abs(sum(us for us, _, _ in ours) / sum(us for us, _, _ in theirs) - 1) < 0.001
    total = [sum(n for _, n, _ in rows) for rows in (ours, theirs)]
    assert total == [995, 1010]
    assert round(100 * (1 - total[0] / total[1]), 1) == 1.5
    now, then = ({name: (us, n) for us, n, name in rows} for rows in (ours, theirs))
    gone_us, gone = then["triton_poi_fused_1"]
    assert "triton_poi_fused_1" not in now
    assert (gone, round(gone_us / gone, 1)) == (15, 0.8)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("triton_red_fused__to_copy_add_clamp_copy__cutlass_scaled_mm_fused_add_rms_norm_mul_reciprocal_", 4),
        ("triton_red_fused__to_copy_add_fused_add_rms_norm_marlin_gemm_", 2),
        ("triton_poi_fused_marlin_gemm_mul_silu_slice_", 3),
        ("triton_poi_fused_", 5),
    ],
)
def test_a_listed_kernel_is_the_same_under_a_number_one_lower(name: str, number: int) -> None:
    """15 launches more of the lower number, in the time that 15 of the higher one took."""
    now, then = (
        {kernel: (us, n) for us, n, kernel in rows}
        for rows in (compare_profile.profiled(RUN_27B, "oracle")[1], compare_profile.recorded(TABLE)[1])
    )
    high, low = f"{name}{number}", f"{name}{number - 1}"
    assert high not in now
    before = then.get(low, (0.0, 0.0))
    assert now[low][1] - before[1] == then[high][1] == 15
    assert now[low][0] - before[0] == pytest.approx(then[high][0], rel=0.03)


FLOORS = {
    # family: (own µs, MB, the µs of these at the roof), as the page has them
    "w4a16": (2983, 10341, 2340),
    "fp8": (1973, 7214, 1632),
    "norm_quant_act": (433, 47, 11),
    "gdn_step": (295, 308, 70),
    "attention": (225, 36, 8),
}
INSIDE = {
    "norm_quant_act": ("linear_attn.in_proj_ba",),
    "gdn_step": ("gdn.conv_state",),
    "attention": ("attention.kv_write",),
}
"""What the candidate reads without a launch of its own (engine/ops/norm, gdn, attention)."""
EACH = {
    # family: parts of the names that one launch's own µs are given for, in the page's order
    "w4a16": ("(engine::Epilogue)2", "(engine::Epilogue)0", "(engine::Epilogue)3"),  # SWIGLU, PARTIAL, ARGMAX
    "fp8": ("(engine::Epilogue)1", "(engine::Epilogue)0"),
    "norm_quant_act": ("Behind)1", "Behind)0"),
    "gdn_step": ("",),
    "attention": ("",),
}


def roofs() -> dict[str, tuple[float, float, float]]:
    return {family: floor(RUN_27B, family, INSIDE.get(family, ())) for family in FLOORS}


@pytest.mark.parametrize("family", FLOORS)
def test_the_distance_to_the_roof_is_the_records(family: str) -> None:
    assert tuple(round(number) for number in roofs()[family]) == FLOORS[family]
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{family}`"))
    cells = [cell.strip().replace(",", "") for cell in row.split("|")]
    mine = of(arms()[0].kernels, family)
    assert cells[2:6] == [str(value) for value in (launches(mine), *FLOORS[family])]
    each = [tuple(k for k in mine if part in k.name) for part in EACH[family]]
    assert [len(kernels) for kernels in each] == [1] * len(each)
    assert re.findall(r"\d+\.\d", cells[6]) == [f"{own_us(kernels) / launches(kernels):.1f}" for kernels in each]


def test_what_is_above_the_roof() -> None:
    page, found = words(), roofs()
    assert f"The roof leaves {sum(roof for _, _, roof in found.values()):.0f} of {arms()[0].own_us:.0f} µs." in page
    above = {family: us - roof for family, (us, _, roof) in found.items()}
    assert (
        f"W4A16 products are {above['w4a16']:.0f} µs above it, norms {above['norm_quant_act']:.0f} for almost nothing "
        f"read, FP8 products {above['fp8']:.0f}, GDN {above['gdn_step']:.0f} and attention {above['attention']:.0f}."
    ) in page
    shares = [100 * roof / us for us, _, roof in (found["w4a16"], found["fp8"])]
    assert f"of own time they are {shares[0]:.0f} and {shares[1]:.0f} %" in page


def test_the_words_about_the_35b_fit_it() -> None:
    """What else that run shows is in test_recorded_35b.py."""
    ours, theirs = arms(RUN_35B)
    text = words().partition("**The 35B**")[2].partition("## Recorded tables")[0]
    assert RUN_35B.name in text
    assert f"{ours.wall_us:.0f} µs a step and {ours.launches:.0f} launches against" in text
    assert f"vLLM's {theirs.wall_us:.0f} and {theirs.launches:.0f} (`" in text
    assert theirs.own_us is not None
    assert theirs.wall_us is not None
    assert f"run {100 * (1 - theirs.own_us / theirs.wall_us):.1f} % less than its step" in text


if __name__ == "__main__":
    page = PAGE.read_text()
    for begin, text in blocks().items():
        head, _, rest = page.partition(begin)
        first, _, rest = rest.partition("\n")
        page = head + begin + first + "\n" + text + END + rest.partition(END)[2]
    PAGE.write_text(page)
