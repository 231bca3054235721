"""7 What a run at the GPU's power limit has to say: how much of it, at which clocks, and that it does not bind."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator

from gate.checks.clock_offset import MAX_OFFSET, offsets
from gate.checks.clock_spread import beyond
from gate.checks.evidence import Evidence
from gate.checks.power_cap import Clocks, clocks
from gate.checks.readings import busy_of_arm, devices, readings
from gate.observe.rows import ARMS, Arm

Levels = dict[int, Clocks]
"""Concurrency -> clocks there."""


def notes(evidence: Evidence) -> Iterator[str]:
    """One sentence for each GPU that a power cap held while it was at work."""
    for device, levels in _by_device(evidence):
        if any(at.capped[arm] for at in levels.values() for arm in ARMS):
            arms = "; ".join(f"{_of_arm(levels, arm)}{_peak(evidence, device, arm)}" for arm in ARMS)
            yield f"{device} was at its power limit ({_limit(evidence, device, levels.values())}): {arms}"


def missing(evidence: Evidence) -> Iterator[str]:
    """A sentence for each GPU whose clocks are valid only because its power limit explains them.

    None where they keep the limits of clock-spread and clock-offset with the capped samples too: such a cap cost
    nothing that those checks mind.
    """
    for device, levels in _by_device(evidence):
        moved = {c: at for c, at in levels.items() if at.explained and _is_part(at)}
        if moved:
            where = ", ".join(f"c{c}" for c in moved)
            shares = " and ".join(f"{share} of the {arm}'s" for arm in ARMS if (share := _share(moved, arm)))
            yield (
                f"clocks not pinned and {device} at its power limit in {shares} busy samples at {where}: "
                "its clock, and so each arm's draw of power, is part of the result"
            )


def _by_device(evidence: Evidence) -> Iterator[tuple[str, Levels]]:
    taken = readings(evidence)
    for device in devices(taken):
        yield device, {c: clocks(evidence, taken, c, device) for c in evidence.concurrencies}


def _is_part(at: Clocks) -> bool:
    """Whether clock-spread or clock-offset would void the level if caps explained nothing."""
    busy = [at.busy(arm) for arm in ARMS]
    apart = any(abs(offset) > MAX_OFFSET for offset in offsets(*busy).values())
    return apart or any(beyond(values) is not None for values in busy)


def _share(levels: Levels, arm: Arm) -> str | None:
    """Of the arm's busy samples, those under a cap, in percent; None where it has none."""
    total = sum(len(at.busy(arm)) for at in levels.values())
    return f"{100 * sum(at.capped[arm] for at in levels.values()) / total:.0f} %" if total else None


def _of_arm(levels: Levels, arm: Arm) -> str:
    busy = [mhz for at in levels.values() for mhz in at.busy(arm)]
    if not busy:
        return f"no sample of the {arm}"
    free = [mhz for at in levels.values() if at.explained for mhz in at.free(arm)]
    outside = f", {statistics.fmean(free):.0f} MHz outside it" if free else ""
    never = [f"c{c}" for c, at in levels.items() if at.busy(arm) and not at.free(arm)]
    told = f", never outside it at {', '.join(never)}" if never else ""
    share = f"{_share(levels, arm)} of {len(busy)} busy samples"
    return f"{arm} in {share}, mean SM clock {statistics.fmean(busy):.0f} MHz{outside}{told}"


def _peak(evidence: Evidence, device: str, arm: Arm) -> str:
    """The highest reading of power. NVML averages over a second on some cards, so that a short peak is not in it."""
    taken = readings(evidence)
    watts = [w for c in evidence.concurrencies for w in busy_of_arm(evidence, taken, c, arm, device, "power_w")]
    return f", up to {max(watts):.0f} W" if watts else ""


def _limit(evidence: Evidence, device: str, levels: Iterable[Clocks]) -> str:
    """The limit in words; before limits were sampled in legs, what the machine said of it when the run began."""
    read = sorted({watts for at in levels for watts in at.limits_w})
    if read:
        return " and ".join(f"{watts:g} W" for watts in read)
    return evidence.run.machine.get(f"power_limit_{device}", "not recorded")
