"""6 Families to modules by launch count and shape: whose launches add up to exactly what a family was launched.

Every weight module runs in the family of its scheme, merged (one launch a layer) or not (one a projection), or in a
wider family (a dequantised lm_head), or inside another kernel (a tiny router folded into a norm). A search finds the
cheapest choice under which every family's launches come out exactly. No such choice, or two as cheap that differ in
what a family reads: the families stay without modules, and the table says so. Which of a family's kernels runs which of
its modules is then read off their launches, and off their grids where those are the modules' rows in tiles of one size.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gate.profile.census import Module
from gate.profile.rows import StepKernel, StepTable

HOME = {"nvfp4": ("w4a16", "fp4"), "fp8": ("fp8",), "bf16": ("bf16",)}
STATES = {
    "attention.kv": "attention",
    "gdn.state": "gdn_step",
    "gdn.conv_state": "gdn_conv",
    "attention.kv_write": "kv_write",
}
FUSED = "inside another kernel"
TINY = ("in_proj_ba", "mlp.gate", "mlp.shared_expert_gate")
"""Small enough for an engine to fold into a neighbouring kernel; a shared expert goes into the routed ones' launch."""
SPLIT_COST, FOLDED_COST, WIDER_COST = 1, 1, 3
TILES = (16, 32, 64, 128, 256)
"""Rows of output that a block makes."""
GRID = re.compile(r" \[grid (\d+)x(\d+)x(\d+)\]$")
"""As difference.py marks a name that runs in several shapes."""
MOST_WAYS = 1000
"""To spread modules over a family's kernels, above which none is looked for."""


@dataclass(frozen=True, slots=True)
class Choice:
    module: Module
    family: str
    launches: int
    cost: int

    @property
    def text(self) -> str:
        return f"{self.launches} {self.module.name}"


def with_modules(table: StepTable, census: Sequence[Module]) -> StepTable:
    """The table with modules and bytes on its kernels, and one note a family on how they were found."""
    weights = [module for module in census if module.scheme != "state"]
    families = sorted({family for names in HOME.values() for family in names} | {"moe_w4a16"})
    launches = {f: _whole(sum(k.launches for k in table.kernels if k.family == f and not k.helper)) for f in families}
    notes: list[str] = []
    found: Mapping[str, list[Choice]] = {}
    if None in launches.values():
        notes.append("products: launches are not whole numbers, so no module is named")
    else:
        wanted = {family: count or 0 for family, count in launches.items()}
        solved = solve(weights, wanted)
        if solved is None:
            shown = ", ".join(f"{family} {count}" for family, count in wanted.items() if count)
            notes.append(f"products: no set of modules has the launches {shown}; they stay without modules and bytes")
        else:
            found = solved
    kernels = list(table.kernels)
    for family, choices in sorted(found.items()):
        if family == FUSED:
            notes += [_inside(c.module) for c in choices]
        elif choices:
            notes.append(f"{family}: {launches[family]} launches = " + " + ".join(c.text for c in choices))
            kernels = _label(kernels, family, choices)
    for state in (module for module in census if module.scheme == "state"):
        kernels, note = _state(kernels, state)
        notes.append(note)
    return table.model_copy(update={"kernels": tuple(kernels), "notes": tuple(note for note in notes if note)})


def solve(weights: Sequence[Module], launches: Mapping[str, int]) -> dict[str, list[Choice]] | None:
    """The cheapest choice of a family for every module under which all launches come out; None: none, or two as cheap.

    Dynamic programming over the launches that are left: some hundred states for the models at hand.
    """
    families = tuple(launches)
    start = tuple(launches[family] for family in families)
    best: dict[tuple[int, ...], tuple[int, tuple[Choice, ...], bool]] = {start: (0, (), True)}
    for module in weights:
        after: dict[tuple[int, ...], tuple[int, tuple[Choice, ...], bool]] = {}
        for left, (cost, chosen, unique) in best.items():
            for choice in _choices(module):
                rest = _take(left, families, choice)
                if rest is None:
                    continue
                total, known = cost + choice.cost, after.get(rest)
                if known is None or total < known[0]:
                    after[rest] = (total, (*chosen, choice), unique)
                elif total == known[0] and _placement(known[1]) != _placement((*chosen, choice)):
                    after[rest] = (total, known[1], False)
        best = after
    end = best.get(tuple(0 for _ in families))
    if end is None or not end[2]:
        return None
    result: dict[str, list[Choice]] = {}
    for choice in end[1]:
        result.setdefault(choice.family, []).append(choice)
    return result


def _choices(module: Module) -> list[Choice]:
    if ".experts." in module.name:
        options = [("moe_w4a16", 0)] if module.scheme == "nvfp4" else [("bf16", 0)]
        # A fused routine launches once a layer for all its experts; one projection at a time is the other way.
    else:
        options = [(family, 0) for family in HOME[module.scheme]]
        if module.scheme != "bf16":
            options.append(("bf16", WIDER_COST))
    made = [Choice(module, family, module.count, cost) for family, cost in options]
    if module.parts > 1:
        made += [Choice(module, family, module.count * module.parts, cost + SPLIT_COST) for family, cost in options]
    if module.name.endswith(TINY) or ".shared_expert." in module.name:
        made.append(Choice(module, FUSED, 0, FOLDED_COST))
    return made


def _take(left: tuple[int, ...], families: tuple[str, ...], choice: Choice) -> tuple[int, ...] | None:
    if choice.family == FUSED:
        return left
    at = families.index(choice.family)
    if left[at] < choice.launches:
        return None
    return (*left[:at], left[at] - choice.launches, *left[at + 1 :])


def _placement(chosen: tuple[Choice, ...]) -> frozenset[tuple[str, str]]:
    """Merged or not does not change what a family reads."""
    return frozenset((choice.module.name, choice.family) for choice in chosen)


def _label(kernels: list[StepKernel], family: str, choices: list[Choice]) -> list[StepKernel]:
    """Each kernel gets the modules that it has in every way to spread them; the others get all that are left.

    Bytes then stand on a kernel alone, or on the slowest of those others for all of them.
    """
    rows = [k for k in kernels if k.family == family and not k.helper and k.launches > 0]
    ways = list(itertools.islice(_spread(rows, choices), MOST_WAYS + 1))
    ways = _of_one_tile(rows, ways) if len(ways) <= MOST_WAYS else []
    fixed = [ways[0][place] if ways and len({way[place] for way in ways}) == 1 else None for place in range(len(rows))]
    left = [choice for choice in choices if not any(choice in mine for mine in fixed if mine)]
    labelled: dict[str, tuple[Sequence[Choice], bool, bool]] = {}
    for row, mine in zip(rows, fixed, strict=True):
        first = mine is not None or not any(shared for _, _, shared in labelled.values())
        labelled[row.name] = (mine if mine is not None else left, first, mine is None and first)
    return [
        k.model_copy(
            update={
                "modules": tuple(c.module.name for c in labelled[k.name][0]),
                "nbytes": sum(c.module.nbytes for c in labelled[k.name][0]) if labelled[k.name][1] else None,
                "flops": sum(c.module.flops for c in labelled[k.name][0]) if labelled[k.name][1] else None,
                "shared_bytes": labelled[k.name][2],
            }
        )
        if k.family == family and k.name in labelled
        else k
        for k in kernels
    ]


def _spread(rows: Sequence[StepKernel], choices: Sequence[Choice]) -> Iterator[tuple[tuple[Choice, ...], ...]]:
    """Every way to give each choice to one row so that the launches of all rows come out."""
    if not rows:
        if not choices:
            yield ()
        return
    for mine in _subsets(choices, round(rows[0].launches)):
        others = [choice for choice in choices if choice not in mine]
        for rest in _spread(rows[1:], others):
            yield (mine, *rest)


def _of_one_tile(
    rows: Sequence[StepKernel], ways: list[tuple[tuple[Choice, ...], ...]]
) -> list[tuple[tuple[Choice, ...], ...]]:
    """Those ways in which every grid is its modules' rows in tiles of one size; all of them where there is none, as
    with a grid that is the device's size. Merged projections alone have rows that are known."""
    grids = [math.prod(map(int, found.groups())) if (found := GRID.search(row.name)) else None for row in rows]
    if None in grids:
        return ways

    def fits(way: tuple[tuple[Choice, ...], ...], tile: int) -> bool:
        return all(
            c.launches == c.module.count and c.module.rows is not None and -(-c.module.rows // tile) == grid
            for mine, grid in zip(way, grids, strict=True)
            for c in mine
        )

    return [way for way in ways if any(fits(way, tile) for tile in TILES)] or ways


def _subsets(choices: Sequence[Choice], total: int) -> list[tuple[Choice, ...]]:
    """Every set of choices whose launches add up to total; a model has some ten modules."""
    found: list[tuple[Choice, ...]] = [()]
    for choice in choices:
        found += [(*some, choice) for some in found]
    return [some for some in found if some and sum(c.launches for c in some) == total]


def _state(kernels: list[StepKernel], module: Module) -> tuple[list[StepKernel], str]:
    """State goes to the family that moves it, where its kernels run a whole number of times a layer that has it.

    A kernel that runs once a step (a split's bookkeeping) is left out of that count.
    """
    family = STATES[module.name]
    rows = [k for k in kernels if k.family == family and k.launches > 1]
    if not rows or not module.count:
        return kernels, _inside(module) if module.count else ""
    odd = [k for k in rows if k.launches % module.count]
    if odd:
        return kernels, (
            f"{family}: {odd[0].launches:g} launches of {odd[0].name[:60]} are no multiple of {module.count} layers; "
            f"{module.name} is not placed"
        )
    main = max(rows, key=lambda k: k.us)
    placed = [
        k.model_copy(update={"modules": (module.name,), "nbytes": module.nbytes if k is main else None})
        if k in rows
        else k
        for k in kernels
    ]
    times = " + ".join(f"{k.launches / module.count:g}" for k in rows)
    return placed, f"{family}: {times} launches a layer in {module.count} layers = {module.name}"


def _inside(module: Module) -> str:
    return (
        f"{module.name}: no launch of its own, so it runs inside another kernel; "
        f"no row counts its {module.nbytes / 1e6:.3g} MB"
    )


def _whole(value: float) -> int | None:
    return round(value) if abs(value - round(value)) < 5e-4 else None
