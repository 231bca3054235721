"""Write findings.txt: `python tests/cases/write.py`. Read the diff before committing it.

For each case, everything the gate says of it: findings with the cells they cover, the primary cells, and why the grid
does not bind. The cases' own `expect` says which reason must be there; this says what a reader gets to see of it.
"""

from __future__ import annotations

import functools
from pathlib import Path

from gate.judge import judge
from gate.report.model import Cell, Report
from gate.selftest import refusals
from gate.selftest.cases import folders, load, made
from gate.selftest.good_run import Build

HERE = Path(__file__).parent
FILE = HERE / "findings.txt"
GOOD = "(the good run)"


def said(name: str) -> str:
    """One case's part of the file; empty where nothing is measured, because the gate refuses to start."""
    if name == GOOD:
        report = judge(Build.run())
        return "\n".join([*map(_cell, report.cells), *_about(report, set())])
    case = load(HERE / name)
    if refusals.kind(case) is not None:
        return ""
    report = judge(made(case)[0])
    return "\n".join([*(_cell(cell) for cell in report.cells if cell.primary), *_about(report, usual())])


@functools.cache
def usual() -> set[str]:
    """Why not even the good run binds."""
    return set(judge(Build.run()).not_binding_because)


def _cell(cell: Cell) -> str:
    numbers = [f"{number:.4g}" for number in (cell.ratio, cell.ratio_low, cell.ratio_high) if number is not None]
    reasons = [f"{reason.code} ({reason.leg_id or 'all'}, {_round(reason.beyond)})" for reason in cell.reasons]
    return f"  {cell.axis} c{cell.concurrency} {cell.verdict.value} {' '.join(numbers)} {'; '.join(reasons)}".rstrip()


def _about(report: Report, usual: set[str]) -> list[str]:
    lines = [
        f"  tokens c{t.concurrency} {t.verdict.value} {t.exact} of {t.sequences}"
        + "".join(f"; {reason.code}: {reason.message}" for reason in t.reasons)
        for t in report.tokens
    ]
    lines += [
        f"  {f.code} [{f.leg_id} {f.arm} {f.concurrency} {f.axis} {_round(f.beyond)}] {f.message}; {f.hint}"
        for f in report.findings
    ]
    return lines + [f"  not binding: {reason}" for reason in report.not_binding_because if reason not in usual]


def _round(number: float | None) -> str:
    return "-" if number is None else f"{number:.4g}"


def parts() -> dict[str, str]:
    """Case -> its part, as the file has it."""
    found: dict[str, str] = {}
    for part in FILE.read_text(encoding="utf-8").split("\n\n"):
        name, _, text = part.strip("\n").partition("\n")
        found[name] = text
    return found


if __name__ == "__main__":
    names = [GOOD, *(folder.name for folder in folders())]
    text = "\n\n".join(f"{name}\n{said(name)}".strip("\n") for name in names)
    FILE.write_text(text + "\n", encoding="utf-8")
