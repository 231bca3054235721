"""8 A step table as people read it: families with launches, µs, bytes, GB/s, share of roof; lines around a delta."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gate.profile.families import TITLES
from gate.profile.levers import IDLE
from gate.profile.rows import Attribution, ProfileReport, StepKernel, StepTable, total_own_us


@dataclass(frozen=True, slots=True)
class FamilyRow:
    family: str
    title: str
    launches: float
    us: float
    own_us: float | None
    """Without what overlaps an earlier kernel; GB/s is of `us`, so a wait for the kernel before lowers it."""
    nbytes: int | None
    bytes_per_s: float | None
    share: float | None
    """Of the roof."""
    flops: int | None


def families(table: StepTable) -> list[FamilyRow]:
    """The slowest first."""
    rows = []
    for family in dict.fromkeys(kernel.family for kernel in table.kernels):
        kernels = [k for k in table.kernels if k.family == family]
        us = sum(k.us for k in kernels)
        counted = [k.nbytes for k in kernels if k.nbytes is not None]
        nbytes = sum(counted) if counted else None
        rate = rate_of(nbytes, us)
        rows.append(
            FamilyRow(
                family,
                TITLES[family],
                sum(k.launches for k in kernels),
                us,
                total_own_us(kernels),
                nbytes,
                rate,
                share_of(rate, table.roof_bytes_per_s),
                sum(k.flops or 0 for k in kernels) or None,
            )
        )
    return sorted(rows, key=lambda row: -row.us)


def rate_of(nbytes: int | None, us: float) -> float | None:
    """Bytes per second."""
    return None if nbytes is None or us <= 0 else nbytes / us * 1e6


def share_of(rate: float | None, roof: float | None) -> float | None:
    return None if rate is None or roof is None else rate / roof


def kernel_bytes(kernel: StepKernel) -> int | None:
    """None too where its bytes are of all the family's kernels together: the family's row has those."""
    return None if kernel.shared_bytes else kernel.nbytes


def kernel_rate(kernel: StepKernel) -> float | None:
    return rate_of(kernel_bytes(kernel), kernel.us)


def giga(value: float | None, digits: int = 3) -> str:
    """Bytes as GB (10^9)."""
    return "–" if value is None else f"{value / 1e9:.{digits}f}"


def rate_text(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e9:.0f}"


def share_text(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def us_text(us: float | None, digits: int = 1) -> str:
    return "–" if us is None else f"{us:.{digits}f}"


def signed(us: float) -> str:
    return f"{round(us, 1) + 0.0:+.1f}"  # no -0.0


def sides(report: ProfileReport) -> tuple[str, str]:
    """What its two steps are called: the arms, or by their order where both are one arm's, of two profiles."""
    same = report.candidate is not None and report.oracle is not None and report.candidate.arm == report.oracle.arm
    return ("first", "second") if same else ("candidate", "oracle")


def headline(table: StepTable, side: str | None = None) -> str:
    """One line about an arm's step. side: what it is called; left out, its arm."""
    who = f"{table.arm} {table.name}" if side in (None, table.arm) else f"{side}: {table.arm} of {table.name}"
    wall = "no untraced wall time" if table.wall_us is None else f"{table.wall_us:.0f} µs wall untraced"
    busy = "" if table.busy_us is None else f", {table.busy_us:.0f} µs with a kernel running"
    busy += "" if table.idle_us is None else f" and {table.idle_us:.0f} without"
    roof = (
        ""
        if table.roof_bytes_per_s is None
        else f"; roof {rate_text(table.roof_bytes_per_s)} GB/s, {table.roof_source}"
    )
    return (
        f"{who}, batch {table.batch}: {table.launches:.0f} launches, "
        f"{table.sum_us:.0f} µs of kernels, {wall}{busy} ({table.tool}{roof})"
    )


def delta_line(found: Attribution) -> str:
    what = "wall time of a step" if found.measured == "wall" else "sum of kernels of a step"
    return f"delta, {what}: {found.candidate_us:.1f} - {found.oracle_us:.1f} = {signed(found.delta_us)} µs"


def drift_line(found: Attribution) -> str:
    return f"drift {'unknown' if found.drift is None else f'{100 * found.drift:.2f} %'}: {found.drift_source}"


def missing(report: ProfileReport) -> str | None:
    """What a profile that was cut short does not have; None of a whole one."""
    if not report.missing:
        return None
    told = " and ".join(one.text for one in report.missing)
    return f"incomplete: {told} {'was' if len(report.missing) == 1 else 'were'} not traced; gate profile begins anew"


def residual_title(found: Attribution) -> str:
    idle = any(lever.name == IDLE for lever in found.levers)
    return "residual (step in the trace, less without it)" if idle else "residual (no kernel running, less overlap)"


def residual_sides(found: Attribution) -> tuple[str, str]:
    """Each arm's µs that no lever has; their difference is the residual."""
    ours = found.candidate_us - sum(lever.candidate_us for lever in found.levers)
    theirs = found.oracle_us - sum(lever.oracle_us for lever in found.levers)
    return f"{round(ours, 1) + 0.0:.1f}", f"{round(theirs, 1) + 0.0:.1f}"


def notes(found: Attribution) -> Iterator[str]:
    """What levers rest on, each text once, with the levers that it is about."""
    about: dict[str, list[str]] = {}
    for lever in found.levers:
        if lever.note:
            about.setdefault(lever.note, []).append(lever.name)
    for note, names in about.items():
        yield f"{'every lever' if len(names) == len(found.levers) else '; '.join(names)}: {note}"
