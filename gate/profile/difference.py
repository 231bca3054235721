"""6 Two windows of different output length -> one decode step: (long - short) / (steps between them), kernel by kernel.

Start-up, prefill and the first decode steps are in both windows and cancel. A kernel that ran equally often in both is
no part of a step; what its time differs by stays in the table, in a row of its own, so that the sum remains the sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from gate.profile.families import rule_of
from gate.profile.roofs import roof
from gate.profile.rows import StepKernel, StepTable, Wall, Window

EQUAL = "(kernels that ran equally often in both windows)"


def steps(short: Window, long: Window) -> int:
    """Decode steps that the long window has more: one batch of requests decodes together."""
    return (long.output_tokens - short.output_tokens) * long.rounds


def step_kernels(short: Window, long: Window) -> tuple[StepKernel, ...]:
    """One row a kernel, the slowest first; a name that runs in several shapes is split by grid where each is whole."""
    count = steps(short, long)
    keys = _keys(short, long, count)
    launches: dict[str, int] = defaultdict(int)
    us: dict[str, float] = defaultdict(float)
    own_us: dict[str, float] = defaultdict(float)
    has_own = all(kernel.own_us is not None for window in (short, long) for kernel in window.kernels)
    raw: dict[str, str] = {}
    for window, sign in ((long, 1), (short, -1)):
        for kernel in window.kernels:
            key = keys[kernel.name, kernel.grid]
            launches[key] += sign * kernel.launches
            us[key] += sign * kernel.us
            own_us[key] += sign * (kernel.own_us or 0.0)
            raw[key] = kernel.name
    rows = []
    equal_us, equal_own_us = (sum(t[k] / count for k in launches if launches[k] == 0) for t in (us, own_us))
    for key in launches:
        if launches[key] == 0:
            continue
        rule = rule_of(raw[key])
        rows.append(
            StepKernel(
                name=key,
                family=rule.family,
                rule=rule.pattern,
                helper=rule.helper,
                launches=launches[key] / count,
                us=us[key] / count,
                own_us=own_us[key] / count if has_own else None,
            )
        )
    if equal_us:
        own = equal_own_us if has_own else None
        rows.append(StepKernel(name=EQUAL, family="sampler_copies", rule="", launches=0.0, us=equal_us, own_us=own))
    return tuple(sorted(rows, key=lambda row: (-row.us, row.name)))


def _keys(short: Window, long: Window, count: int) -> dict[tuple[str, str], str]:
    """(name, grid) -> row: the name alone unless every grid of it runs a whole number of times a step.

    Attention picks its grid by context, so a grid of its own would come and go between two steps of one kernel.
    """
    grids: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for window, sign in ((long, 1), (short, -1)):
        for kernel in window.kernels:
            grids[kernel.name][kernel.grid] += sign * kernel.launches
    keys = {}
    for name, found in grids.items():
        whole = len(found) > 1 and all(n > 0 and n % count == 0 for n in found.values())
        keys.update({(name, grid): f"{name} [grid {grid}]" if whole else name for grid in found})
    return keys


def wall_us(wall: Wall | None, steps_between: int) -> float | None:
    """A step's time without tracing: medians of both lengths, their difference over the steps between them.

    Each from its last first token on, where that was recorded: prefill is in both lengths, but need not take as long in
    both.
    """
    if wall is None or not wall.short_us or not wall.long_us:
        return None
    short, long = _decoding(wall.short_us, wall.short_first_us), _decoding(wall.long_us, wall.long_first_us)
    return (median(long) - median(short)) / steps_between


def _decoding(took_us: Sequence[float], first_us: Sequence[float]) -> list[float]:
    return [took - first for took, first in zip(took_us, first_us, strict=True)] if first_us else list(took_us)


def _a_step(short_us: float | None, long_us: float | None, count: int) -> float | None:
    return None if short_us is None or long_us is None else (long_us - short_us) / count


def step_table(name: str, short: Window, long: Window, wall: Wall | None, roof_bytes_per_s: float | None) -> StepTable:
    """Without modules: modules.py adds them. roof_bytes_per_s: what the user says; None looks the device up."""
    count = steps(short, long)
    top, source = roof(long.device, long.bandwidth_bytes_per_s, roof_bytes_per_s)
    return StepTable(
        arm=long.arm,
        name=name,
        batch=long.concurrency,
        backend=long.backend,
        tool=long.tool,
        device=long.device,
        roof_bytes_per_s=top,
        roof_source=source,
        steps=count,
        wall_us=wall_us(wall, long.output_tokens - short.output_tokens),
        gap_us=median(wall.gaps_us) if wall is not None and wall.gaps_us else None,
        largest_gap_us=None if wall is None else max(wall.largest_gaps_us, default=None),
        busy_us=_a_step(short.busy_us, long.busy_us, count),
        idle_us=_a_step(short.idle_us, long.idle_us, count),
        kernels=step_kernels(short, long),
    )
