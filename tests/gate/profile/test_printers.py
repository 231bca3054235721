"""The printers: nothing is dropped, unmeasured is a dash, other people's names cannot break a page."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from gate.observe.rows import Finding
from gate.profile import markdown, plots, summary, table
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


def test_markdown_lists_every_kernel_with_its_rule(report: ProfileReport) -> None:
    text = markdown.render(report)
    assert report.oracle is not None
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.endswith(" |")]
    for kernel in report.oracle.kernels:
        assert any(summary.short(kernel.name).replace("<", "&lt;") in row for row in rows)
    assert "`marlin::Marlin<\\|skinny_kernel<.*W4A16\\|\\bgptq_marlin\\b`" in text
    assert "found \\| &lt;b>" in text


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void marlin::Marlin<1125899906909960l, 256>(int4 const*)", "marlin::Marlin"),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
        ("void cutlass::device_kernel<vllm::cutlass_3x_gemm_sm90_fp8<float> >(P)", "vllm::cutlass_3x_gemm_sm90_fp8"),
        ("void skinny_kernel<W4A16>(SkinnyArgs) [grid 132x1x1]", "skinny_kernel [grid 132x1x1]"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD "),
        ("x" * 100, "x" * 63 + "…"),
    ],
)
def test_short_names(name: str, expected: str) -> None:
    assert summary.short(name) == expected


def test_rates_are_dashes_where_bytes_are_not_known() -> None:
    found = {row.family: row for row in summary.families(recorded("vllm-0.25.0-h200-27b-b1"))}
    assert {row.bytes_per_s for row in found.values()} == {None}
    assert (summary.rate_text(None), summary.share_text(None), summary.mega(None)) == ("–", "–", "–")
    assert (summary.rate_text(2.13e12), summary.share_text(0.483), summary.mega(10_341_000_000)) == (
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
