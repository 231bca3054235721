"""docs/profile.md's two blocks are what the code prints for the recorded run; run as a module, this writes them."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import compare_profile
import pytest

from gate.profile import store, table
from gate.profile.conclude import derive, exit_code
from gate.profile.rows import ProfileReport, StepKernel
from tests.gate.profile.tables import FIXTURES, RUN, RUN_TABLES, fixture

PAGE = Path(__file__).resolve().parents[3] / "docs" / "profile.md"
END = "<!-- end -->"
TABLE = FIXTURES / "vllm-0.25.0-h200-35b-b1.json"


def report() -> ProfileReport:
    return derive(store.read(RUN))


def comparison() -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert compare_profile.main([str(RUN), str(TABLE)]) == 1
    return out.getvalue()


def blocks() -> dict[str, str]:
    """Begin of a block's marker -> its text."""
    made = {"<!-- example: ": table.render(report(), width=118), "<!-- comparison: ": comparison()}
    return {begin: f"```\n{text}```\n" for begin, text in made.items()}


def test_the_page_shows_what_the_code_prints() -> None:
    page = PAGE.read_text()
    for begin, text in blocks().items():
        assert page[page.index(begin) :].partition("\n")[2].partition(END)[0] == text


def own_us(kernels: tuple[StepKernel, ...], *parts: str) -> float:
    return sum(k.own_us or 0.0 for k in kernels if any(part in k.name for part in parts))


def test_the_words_below_the_example_fit_it() -> None:
    found = report()
    assert exit_code(found) == 2
    assert found.attribution is not None
    assert found.candidate is not None
    assert found.oracle is not None
    assert {lever.proof for lever in found.attribution.levers} == {"unproven"}
    theirs = found.oracle.kernels
    shared = [k for k in theirs if k.modules and all("shared_expert." in module for module in k.modules)]
    assert [(k.launches, round(k.own_us or 0.0)) for k in shared] == [(80, 769)]
    assert round(own_us(theirs, "MulFunctor", "sigmoid_kernel_cuda")) == 102
    launches = {"norm_quant_act": 0.0, "bf16": 0.0, "routing": 0.0}
    for kernel in theirs:
        if kernel.family in launches:
            launches[kernel.family] += kernel.launches
    assert sum(launches.values()) == 632
    long_us = store.read(RUN).arms[1].wall.long_us
    assert round((max(long_us) - min(long_us)) / 128) == 198


def test_the_words_below_the_comparison_fit_it() -> None:
    now, then = (
        {name: (us, launches) for us, launches, name in fixture(table)["rows"]}
        for table in (RUN_TABLES["oracle"], TABLE.stem)
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


FLOORS = {
    # family: (own µs, MB, the µs of these at the roof), as the page has them
    "moe_w4a16": (581, 637, 144),
    "norm_quant_act": (420, 50, 11),
    "fp8": (458, 1279, 289),
    "attention": (141, 11, 3),
    "gdn_step": (155, 129, 29),
    "w4a16": (77, 286, 65),
}
INSIDE = {
    "moe_w4a16": ("mlp.shared_expert.down_proj", "mlp.shared_expert.gate_up_proj"),
    "norm_quant_act": ("linear_attn.in_proj_ba", "mlp.gate", "mlp.shared_expert_gate"),
    "gdn_step": ("gdn.conv_state",),
    "attention": ("attention.kv_write",),
}
"""What the candidate reads without a launch of its own (engine/ops/norm, moe, gdn, attention)."""


@pytest.mark.parametrize("family", FLOORS)
def test_the_distance_to_the_roof_is_the_records(family: str) -> None:
    candidate = report().candidate
    assert candidate is not None
    assert candidate.roof_bytes_per_s is not None
    kernels = [k for k in candidate.kernels if k.family == family]
    census = {module.name: module.nbytes for module in store.read(RUN).census}
    nbytes = sum(k.nbytes or 0 for k in kernels) + sum(census[name] for name in INSIDE.get(family, ()))
    us = sum(k.own_us or 0.0 for k in kernels)
    assert (round(us), round(nbytes / 1e6), round(nbytes / candidate.roof_bytes_per_s * 1e6)) == FLOORS[family]
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{family}`"))
    cells = [cell.strip().replace(",", "") for cell in row.split("|")]
    assert cells[3:6] == [str(value) for value in FLOORS[family]]


if __name__ == "__main__":
    page = PAGE.read_text()
    for begin, text in blocks().items():
        head, _, rest = page.partition(begin)
        first, _, rest = rest.partition("\n")
        page = head + begin + first + "\n" + text + END + rest.partition(END)[2]
    PAGE.write_text(page)
