"""A CUDA graph was traced as one row: the kernels inside it are in no table.

What it does
    Refuses the profile when a window's trace has rows for whole graphs, or no kernels at all.
Why
    nsys traces graphs as a whole unless told otherwise. A decode step that is one graph then shows 0.030 ms of kernels
    against 114 ms of wall time, and a table of what was outside the graph looks like a result.
Deciding numbers
    The trace's level: "node" is right, "graph" and "none" are not. No threshold.
What to do
    Trace with --cuda-graph-trace=node, which `gate profile` does by itself; look whether a wrapper replaces its nsys.
    No kernel at all means that the tool got none from CUPTI: it serves one tool at a time, and an nsys much older than
    the driver may get nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.observe.rows import Finding
from gate.profile.checks.evidence import Evidence, finding
from gate.profile.rows import Backend

CODE = "graph-level-trace"
REFUSES = True
WHAT = {"graph": "whole CUDA graphs as single rows", "none": "no kernel"}
WHOLE = "trace with --cuda-graph-trace=node"
NOTHING: dict[Backend, str] = {
    "nsys": "this nsys may be too old for the driver, or another tool in the server holds CUPTI; try --backend cupti",
    "cupti": "another tool in the server may hold CUPTI, and only one can; its log says more",
}


def check(evidence: Evidence) -> Iterator[Finding]:
    for window in evidence.windows:
        if window.level != "node":
            yield finding(
                CODE,
                window.arm,
                f"{window.arm}'s {window.output_tokens}-token window was traced with {WHAT[window.level]} "
                f"({window.tool}); expected every kernel of a graph",
                WHOLE if window.level == "graph" else NOTHING[window.backend],
            )
