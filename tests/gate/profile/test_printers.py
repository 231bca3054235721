"""The printers: nothing is dropped, unmeasured is a dash, other people's names cannot break a page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from gate.observe.rows import Finding
from gate.profile import markdown, names, plots, summary, table
from gate.profile.levers import Drift, attribute
from gate.profile.modules import with_modules
from gate.profile.roofs import roof
from gate.profile.rows import ProfileReport
from tests.gate.profile.tables import census, recorded


@pytest.fixture(scope="module")
def report() -> ProfileReport:
    ours, theirs = (
        with_modules(recorded(name, arm=arm), census("27b", 1)).model_copy(update={"wall_us": wall})  # type: ignore[arg-type]
        for name, arm, wall in (
            ("engine-h200-27b-b1-composed", "candidate", 6000.0),
            ("vllm-0.25.0-h200-27b-b1", "oracle", 9050.0),
        )
    )
    return ProfileReport(
        run_id="r1",
        recipe="27b",
        host="h",
        started_at="2026-11-29T00:00:00+00:00",
        candidate=ours,
        oracle=theirs,
        attribution=attribute(ours, theirs, Drift(0.004, "the candidate before and after the oracle")),
        findings=(Finding(code="names-unpaired", message="found | <b>", hint="add a rule"),),
        refused=False,
    )


def test_every_lever_and_the_residual_are_shown(report: ProfileReport) -> None:
    assert report.attribution is not None
    for text in (table.render(report), markdown.render(report)):
        for lever in report.attribution.levers:
            assert lever.name in text
            assert summary.signed(lever.delta_us) in text
        assert "residual" in text
        assert summary.signed(report.attribution.residual_us) in text  # 3050 measured, 3171.4 in levers
        assert "names-unpaired" in text
    assert summary.signed(report.attribution.residual_us) == "+121.4"


def test_the_residual_has_both_arms_sides_so_that_columns_add_up(report: ProfileReport) -> None:
    """6000 µs of wall less 5825 of kernels, and 9050 less 8996.4."""
    assert report.attribution is not None
    assert summary.residual_sides(report.attribution) == ("175.0", "53.6")
    assert "| residual (no kernel running, less overlap) | 175.0 | 53.6 | +121.4 | |" in markdown.render(report)
    assert re.search(r"residual \(no kernel .*\) +175.0 +53.6 +\+121.4\n", table.render(report))


def test_what_every_lever_rests_on_is_said_once(report: ProfileReport) -> None:
    assert report.candidate is not None
    assert report.oracle is not None
    doubtful = attribute(report.candidate, report.oracle, Drift(None, "x"), doubtful="the host was busy")
    for text in (
        render(report.model_copy(update={"attribution": doubtful})) for render in (table.render, markdown.render)
    ):
        assert text.count("the host was busy") == 1
        assert "every lever: the host was busy; no drift control" in text


def test_a_note_of_one_lever_names_it(report: ProfileReport) -> None:
    assert report.attribution is not None
    (noted,) = [lever for lever in report.attribution.levers if lever.families == ("sampler_copies",)]
    assert f"* {noted.name}: {noted.note}" in markdown.render(report).replace("\\|", "|")


@pytest.mark.parametrize(("own_us", "explained"), [(-0.05, True), (-0.004, False), (0.0, False), (None, False)])
def test_an_own_time_below_zero_is_explained(report: ProfileReport, own_us: float | None, explained: bool) -> None:
    assert report.candidate is not None
    first, *rest = report.candidate.kernels
    kernels = (first.model_copy(update={"own_us": own_us}), *rest)
    changed = report.model_copy(update={"candidate": report.candidate.model_copy(update={"kernels": kernels})})
    assert (markdown.BELOW_ZERO in markdown.render(changed)) is explained


def test_nothing_is_minus_zero() -> None:
    assert summary.signed(-0.04) == "+0.0"
    assert summary.signed(-0.06) == "-0.1"


def test_markdown_lists_every_kernel_with_its_rule(report: ProfileReport) -> None:
    text = markdown.render(report)
    assert report.oracle is not None
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.endswith(" |")]
    for text_of in names.shown(kernel.name for kernel in report.oracle.kernels).values():
        assert any(row.startswith(f"| {text_of.replace('<', '&lt;')} |") for row in rows)
    assert "`marlin::Marlin<\\|skinny_kernel<.*W4A16\\|w4a16_wide_kernel\\|\\bgptq_marlin\\b`" in text
    assert "found \\| &lt;b>" in text


def test_each_kernel_has_its_bytes_rate_and_share_unless_they_are_its_family_s(report: ProfileReport) -> None:
    """Two of the engine's FP8 kernels run 64 times a step each, so that either could be either's modules."""
    text = markdown.render(report)
    marlin = "| marlin::Marlin | w4a16 | lm_head, mlp.down_proj, mlp.gate_up_proj | 129 | 4861.07 | – |"
    assert f"{marlin} 10.341 | 2127 | 48 % | `" in text
    assert report.candidate is not None
    shared = [kernel for kernel in report.candidate.kernels if kernel.shared_bytes]
    assert shared
    assert {summary.kernel_bytes(kernel) for kernel in shared} == {None}
    for kernel in shared:
        assert f" | {kernel.launches:g} | {kernel.us:.2f} | – | – | – | – | `" in text


def test_a_refused_profile_shows_no_step() -> None:
    refused = ProfileReport(
        run_id="r1",
        recipe="27b",
        host="h",
        started_at="t",
        candidate=None,
        oracle=None,
        attribution=None,
        findings=(Finding(code="graph-level-trace", message="m", hint="h"),),
        refused=True,
    )
    assert "REFUSED" in table.render(refused)
    assert "Refused" in markdown.render(refused)
    assert plots.render(refused) == {}


def test_plots_are_svg_with_each_family_and_arm(report: ProfileReport) -> None:
    drawn = plots.render(report)
    assert set(drawn) == {"stack.svg", "roofline.svg"}
    for text in drawn.values():
        ET.fromstring(text)
    assert "W4A16 products" in drawn["stack.svg"]
    assert "FP8 W8A8 products" in drawn["roofline.svg"]
    assert "roof 4420 GB/s" in drawn["roofline.svg"]
    assert plots.render(report) == drawn


def test_rates_are_dashes_where_bytes_are_not_known() -> None:
    found = {row.family: row for row in summary.families(recorded("vllm-0.25.0-h200-27b-b1"))}
    assert {row.bytes_per_s for row in found.values()} == {None}
    assert (summary.rate_text(None), summary.share_text(None), summary.giga(None)) == ("–", "–", "–")
    assert (summary.rate_text(2.13e12), summary.share_text(0.483), summary.giga(10_341_000_000)) == (
        "2130",
        "48 %",
        "10.341",
    )


@pytest.mark.parametrize(
    ("device", "traced", "given", "expected"),
    [
        ("NVIDIA H200", 4.8e12, None, 4.42e12),
        ("NVIDIA H200", 4.8e12, 4e12, 4e12),
        ("NVIDIA B200", 8e12, None, 8e12),
        ("NVIDIA GB10", None, None, 273e9),
        ("NVIDIA Unknown", None, None, None),
        (None, None, None, None),
    ],
)
def test_the_roof(device: str | None, traced: float | None, given: float | None, expected: float | None) -> None:
    assert roof(device, traced, given)[0] == expected
