"""7 Two step tables -> the delta in levers that add up to it, each with what it rests on, and a residual line.

A lever is what both arms spend on the same work. Kernels that compute a common module on either arm belong together (an
lm_head that one arm runs with its other W4A16 products and the other arm dequantised), and so does work that only one
arm launches with the family it is folded into on the other. Kernels without modules go by family. That the parts add up
proves nothing by itself: a sum closes however it is labelled. So each lever also says how its kernels were paired, and
none below the drift is quoted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gate.profile.families import OTHER, TITLES
from gate.profile.modules import HOME, STATES
from gate.profile.rows import Attribution, Lever, Proof, StepKernel, StepTable, total_own_us

FOLDS = {"gdn_conv": "gdn_step", "bf16": "norm_quant_act", "kv_write": "attention", "routing": "norm_quant_act"}
"""Family -> where its work goes when an arm has no launch of it: routing to the norm whose output the router reads, and
which adds up what the experts leave."""
SHARED, ROUTED = ".shared_expert.", "moe_w4a16"
"""A shared expert without a launch of its own is one more of the routed ones (modules.py)."""
PLACED = frozenset({family for names in HOME.values() for family in names} | set(STATES.values()) | {"moe_w4a16"})
"""Families whose launch counts name modules; the others are paired by rule alone."""
IDLE = "no kernel running"
NO_CONTROL = "no drift control"
LEAST_EQUAL = 0.1
"""Of a step's kernel time, below which equal kernels are no drift control."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How far kernels moved that should not have; share is None where too few of them are equal."""

    share: float | None
    source: str


def attribute(candidate: StepTable, oracle: StepTable, drift: Drift, *, doubtful: str = "") -> Attribution:
    """doubtful: why nothing of these tables is proven; empty where every check passed."""
    walls = candidate.wall_us is not None and oracle.wall_us is not None
    time_of = _whole_us if None in (candidate.own_us, oracle.own_us) else _own_us
    everywhere = (*candidate.kernels, *oracle.kernels)
    levers = [_lever(group, everywhere, drift, doubtful, time_of) for group in _groups(candidate, oracle)]
    if walls and time_of is _own_us and candidate.idle_us is not None and oracle.idle_us is not None:
        levers.append(_idle(candidate.idle_us, oracle.idle_us, drift, doubtful))
    return Attribution(
        levers=tuple(sorted(levers, key=lambda lever: (-abs(lever.delta_us), lever.name))),
        candidate_us=candidate.wall_us if walls and candidate.wall_us is not None else time_of(candidate.kernels),
        oracle_us=oracle.wall_us if walls and oracle.wall_us is not None else time_of(oracle.kernels),
        measured="wall" if walls else "kernels",
        drift=drift.share,
        drift_source=drift.source,
    )


def _whole_us(kernels: Sequence[StepKernel]) -> float:
    return sum(kernel.us for kernel in kernels)


def _own_us(kernels: Sequence[StepKernel]) -> float:
    """Kernels that wait for the one before while it still runs would count that wait twice."""
    return total_own_us(kernels) or 0.0


def drift_of(one: StepTable, other: StepTable, source: str) -> Drift:
    """Time-weighted median of |t1/t2 - 1| over kernels with equal name and equal launches on both sides.

    The median, so that one kernel that really changed is not mistaken for drift; weighted by time, so that a hundred
    one-microsecond fills do not decide. None where they are less than LEAST_EQUAL of either step's kernels: two arms
    often share a copy of 2 µs and nothing else, which says nothing of the rest.
    """
    mine = {kernel.name: kernel for kernel in one.kernels}
    equal = {
        k.name: k.us
        for k in other.kernels
        if k.us > 0 and k.launches > 0 and k.name in mine and mine[k.name].launches == k.launches
    }
    moved = sorted((abs(mine[name].us / us - 1), us) for name, us in equal.items())
    if not moved:
        return Drift(None, f"{source}: no kernel has equal name and launches on both sides")
    total = sum(us for _, us in moved)
    what = f"{source}: {len(moved)} equal kernel{'s' if len(moved) > 1 else ''}, {total:.0f} µs a step"
    part = min(total / other.sum_us, sum(mine[name].us for name in equal) / one.sum_us)
    if part < LEAST_EQUAL:
        return Drift(None, f"{what}, {100 * part:.2g} % of it; a drift takes {100 * LEAST_EQUAL:.0f} %")
    half, seen = total / 2, 0.0
    for share, us in moved:
        seen += us
        if seen >= half:
            return Drift(share, what)
    raise AssertionError("a sum reaches its half")


class _Union:
    """Keys that belong together; a key stands for itself until it is joined."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, key: str) -> str:
        while (parent := self._parent.setdefault(key, key)) != key:
            key = parent
        return key

    def join(self, one: str, other: str) -> None:
        self._parent[self.find(one)] = self.find(other)


def _key(kernel: StepKernel) -> str:
    return f"module {kernel.modules[0]}" if kernel.modules else f"family {kernel.family}"


def _fold(kernel: StepKernel) -> str | None:
    if kernel.modules and all(SHARED in module for module in kernel.modules):
        return ROUTED
    return FOLDS.get(kernel.family)


def _groups(candidate: StepTable, oracle: StepTable) -> list[tuple[list[StepKernel], list[StepKernel]]]:
    """(candidate's kernels, oracle's kernels) of each lever; every kernel is in exactly one."""
    union, tables = _Union(), (candidate, oracle)
    for table in tables:
        for kernel in table.kernels:
            for module in kernel.modules:
                union.join(f"module {module}", _key(kernel))
        for family in {k.family for k in table.kernels if not k.modules}:
            # Bookkeeping beside products (a split's reduction, a scheduler's prepare) goes where most of them is.
            if placed := [k for k in table.kernels if k.family == family and k.modules]:
                union.join(f"family {family}", _key(max(placed, key=lambda k: k.us)))
    for table, other in (tables, tables[::-1]):
        modules = {module for k in other.kernels for module in k.modules}
        families = {k.family for k in other.kernels}
        for kernel in table.kernels:
            alone = not set(kernel.modules) & modules if kernel.modules else kernel.family not in families
            target = [k for k in (*other.kernels, *table.kernels) if k.family == _fold(kernel)]
            if alone and target and modules:
                union.join(_key(kernel), _key(target[0]))
    keys = dict.fromkeys(union.find(_key(k)) for table in tables for k in table.kernels)
    sides = [{key: [k for k in table.kernels if union.find(_key(k)) == key] for key in keys} for table in tables]
    return [(sides[0][key], sides[1][key]) for key in keys]


def _title(family: str, here: Sequence[StepKernel], everywhere: Sequence[StepKernel]) -> str:
    """The family's name; with modules where the family is spread over several levers."""
    mine = [k for k in here if k.family == family]
    if len(mine) == sum(k.family == family for k in everywhere):
        return TITLES[family]
    modules = sorted({module for k in mine for module in k.modules})
    return f"{TITLES[family]} ({', '.join(modules)})" if modules else TITLES[family]


def _lever(
    group: tuple[list[StepKernel], list[StepKernel]],
    everywhere: Sequence[StepKernel],
    drift: Drift,
    doubtful: str,
    time_of: Callable[[Sequence[StepKernel]], float],
) -> Lever:
    ours, theirs = group
    us = [time_of(kernels) for kernels in group]
    kernels = (*ours, *theirs)
    proof, note = _proof(ours, theirs, us, drift, doubtful)
    order = sorted({k.family for k in kernels}, key=lambda f: (-sum(k.us for k in kernels if k.family == f), f))
    return Lever(
        name=" + ".join(_title(family, kernels, everywhere) for family in order),
        families=tuple(order),
        modules=tuple(sorted({module for k in kernels for module in k.modules})),
        candidate_us=us[0],
        oracle_us=us[1],
        nbytes=max(sum(k.nbytes or 0 for k in side) for side in group) or None,
        proof=proof,
        note=note,
    )


def _idle(candidate_us: float, oracle_us: float, drift: Drift, doubtful: str) -> Lever:
    """Between kernels, where the device waits for the host. It has no kernel to pair, and the trace to be seen in."""
    proof, note = _proof((), (), (candidate_us, oracle_us), drift, doubtful)
    return Lever(
        name=IDLE,
        families=(),
        candidate_us=candidate_us,
        oracle_us=oracle_us,
        proof="seen idle" if proof == "same kernels" else proof,
        note=note,
    )


def _proof(
    ours: Sequence[StepKernel], theirs: Sequence[StepKernel], us: Sequence[float], drift: Drift, doubtful: str
) -> tuple[Proof, str]:
    kernels = (*ours, *theirs)
    unknown = [k for k in kernels if k.family == OTHER]
    lost = [k for k in kernels if k.family in PLACED and not k.helper and k.launches > 1 and not k.modules]
    if doubtful:
        return "unproven", doubtful if drift.share is not None else f"{doubtful}; {NO_CONTROL}"
    if unknown:
        return "unproven", f"{len(unknown)} names that no rule knows, first {unknown[0].name[:60]}"
    if lost:
        return "unproven", f"launches of {lost[0].name[:60]} ({lost[0].launches:g}) match no module"
    if drift.share is None:
        return "unproven", NO_CONTROL
    if abs(us[0] - us[1]) <= drift.share * max(us):
        return "below drift", f"equal kernels moved by {100 * drift.share:.2f} %"
    if {(k.name, k.launches) for k in ours} == {(k.name, k.launches) for k in theirs}:
        return "same kernels", ""
    if all(k.family in PLACED for k in kernels):
        return "launch counts", ""
    rules = sorted({k.rule for k in kernels if k.rule and k.family not in PLACED})
    return "by family", "paired by the rules " + ", ".join(rules)
