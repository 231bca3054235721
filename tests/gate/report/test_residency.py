"""What both arms hold, in one line; what neither says is no line."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from gate.report import html, markdown, residency, terminal
from gate.report.model import Build, Report, Residency


@pytest.fixture
def holding(golden: ModuleType) -> Any:
    def made(candidate: Residency | None, oracle: Residency | None) -> Report:
        report: Report = golden.report()
        return report.model_copy(
            update={
                "candidate": report.candidate.model_copy(update={"residency": candidate}),
                "oracle": report.oracle.model_copy(update={"residency": oracle}),
            }
        )

    return made


def weights(report: Report) -> str | None:
    return residency.weights_text(report.candidate, report.oracle)


def kernels(report: Report) -> str | None:
    return residency.kernels_text(report.candidate, report.oracle)


def test_both_arms_in_one_line(holding: Any) -> None:
    report = holding(
        Residency(shipped_bytes=2_000_000, resident_bytes=2_500_000, copy_bytes=1_000, widened=("a",)),
        Residency(resident_bytes=3_000_000),
    )
    assert weights(report) == (
        "candidate 2.500 MB resident, 2.000 MB shipped, 0.001 MB of dequantised copies, 1 module wider than shipped; "
        "oracle 3.000 MB resident"
    )


def test_what_an_arm_does_not_say_is_a_dash(holding: Any) -> None:
    assert weights(holding(Residency(resident_bytes=0), None)) == "candidate 0.000 MB resident; oracle –"
    assert weights(holding(None, None)) is None
    assert weights(holding(Residency(kernels=("k",)), None)) is None
    assert kernels(holding(None, Residency())) is None


def test_kernels_are_named_where_known(holding: Any) -> None:
    report = holding(Residency(kernels=("own",), reference_ops=("gdn", "moe")), Residency(kernels=("marlin", "fa3")))
    assert kernels(report) == "candidate: own, on the reference: gdn, moe; oracle: marlin, fa3"
    assert kernels(holding(Residency(reference_ops=("gdn",)), None)) == "candidate: on the reference: gdn"
    assert kernels(holding(Residency(compiled=("a", "b")), None)) == "candidate: compiled: a, b"
    assert kernels(holding(Residency(kernels=("a_1",), compiled=("a", "b")), None)) == "candidate: a_1"


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (Build(), None),
        (Build(source_sha256="0123456789abcdef"), "sources 0123456789ab"),
        (Build(kernel_arch="sm_90a"), "kernels – for sm_90a"),
        (Build(kernel_source_sha256="k"), "kernels k for –"),
        (
            Build(source_sha256="s", kernel_source_sha256="fedcba9876543210", kernel_arch="sm_90a"),
            "sources s, kernels fedcba987654 for sm_90a",
        ),
    ],
)
def test_the_candidates_line_says_which_build_answered(golden: ModuleType, made: Build, told: str | None) -> None:
    report: Report = golden.report()
    plain = markdown.render(report)
    assert residency.build_text(made) == told
    shown = markdown.render(
        report.model_copy(update={"candidate": report.candidate.model_copy(update={"build": made})})
    )
    (line,) = set(shown.splitlines()) - set(plain.splitlines()) if told else {"| candidate | nothing |"}
    assert line.startswith("| candidate | ")
    assert told is None or f", {told}, checkpoints/tiny" in line.replace("\\_", "_")


def test_every_printer_shows_it(holding: Any) -> None:
    report = holding(Residency(resident_bytes=2_500_000), Residency(kernels=("<marlin>",)))
    pages = (html.render(report), markdown.render(report), terminal.render(report))
    assert all("2.500 MB resident" in page for page in pages)
    assert "<marlin>" not in pages[0] + pages[1]
