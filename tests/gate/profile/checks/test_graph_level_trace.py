"""graph-level-trace: whole graphs as rows, or nothing; a good profile passes every check."""

from __future__ import annotations

import pytest

from gate.profile import checks
from tests.gate.profile.checks.conftest import evidence


def test_a_good_profile_has_no_finding() -> None:
    assert checks.findings(evidence()) == ()


def test_whole_graphs_are_refused() -> None:
    """As nsys records them by default: 0.030 ms of kernels a step, against 114 of wall time."""
    broken = evidence(lambda w: {"level": "graph"} if w.arm == "oracle" else {})
    found = checks.findings(broken)
    assert [(f.code, f.arm) for f in found] == [("graph-level-trace", "oracle")] * 2
    assert "whole CUDA graphs as single rows" in found[0].message
    assert "graph-level-trace" in checks.REFUSING


def test_a_trace_without_a_kernel_is_refused() -> None:
    found = checks.findings(evidence(lambda w: {"level": "none"} if w.output_tokens == 136 else {}))
    assert {f.code for f in found} == {"graph-level-trace"}
    assert "no kernel" in found[0].message


@pytest.mark.parametrize(
    ("level", "backend", "words"),
    [
        ("graph", "nsys", "--cuda-graph-trace=node"),
        ("none", "nsys", "too old for the driver"),
        ("none", "cupti", "may hold CUPTI"),
    ],
)
def test_what_to_do_about_it_depends_on_the_tool(level: str, backend: str, words: str) -> None:
    found = checks.findings(evidence(lambda _: {"level": level, "backend": backend}))
    assert found
    assert all(words in f.hint for f in found if f.code == "graph-level-trace")
