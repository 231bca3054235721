"""A ModelDiff as text: one line for what differs alike, first | second; sizes in GB, 10^9 bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from gate.modeldiff.record import ModelDiff, ModuleDiff, Side
from gate.units import DASH, GB, number

WIDEST = 60
"""A value longer than this, such as a list of layer types, is cut."""


def render(made: ModelDiff, *, every: bool = False) -> str:
    """every: the kinds of modules that are alike too."""
    sections = (
        ("", (_head("first", made.first), _head("second", made.second))),
        ("modules, first | second", map(_module, made.modules)),
        ("settings, first | second", (f"{one.name}: {_cut(one.first)} | {_cut(one.second)}" for one in made.settings)),
        ("left unquantised by the first configuration alone", made.ignored_by_first),
        ("left unquantised by the second configuration alone", made.ignored_by_second),
        ("configuration against headers", _contradictions(made)),
        ("GB (10^9 bytes), first | second", _sizes(made)),
        ("alike", (f"{name}: {scheme}" for name, scheme in made.equal_modules.items()) if every else ()),
    )
    lines: list[str] = []
    for title, content in sections:
        # Names and values are the files' own words: one that holds a line break stays in its line.
        if told := [" ".join(line.splitlines()) for line in content]:
            lines += ["", title, *(f"  {line}" for line in told)] if title else told
    kinds = len(made.equal_modules)
    lines += [
        "",
        f"{kinds} kinds of modules are stored alike{'' if every else ' (--all lists them)'}; no weight was read",
    ]
    return "\n".join(lines)


def _head(which: str, side: Side) -> str:
    parts = ", ".join(f"{part} {number(nbytes / GB)}" for part, nbytes in sorted(side.bytes_by_part.items()))
    return f"{which:<7} {side.name}: {side.shards} shard{'s' if side.shards != 1 else ''}, GB (10^9 bytes): {parts}"


def _module(one: ModuleDiff) -> str:
    text = f"{one.name}: {one.first or 'none'} | {one.second or 'none'}"
    if not one.layers:
        return text
    text += f", {len(one.layers)} of {one.of_layers} layers"
    if one.modules != len(one.layers):
        text += f", {one.modules} of {one.of} modules"
    return text if len(one.layers) == one.of_layers else f"{text}: {ranges(one.layers)}"


def ranges(numbers: tuple[int, ...]) -> str:
    """Sorted (0, 1, 2, 5) -> "0-2, 5"."""
    starts = [n for n, before in zip(numbers, (None, *numbers), strict=False) if before is None or n != before + 1]
    ends = [a for a, b in pairwise((*numbers, None)) if a is not None and b != a + 1]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def _contradictions(made: ModelDiff) -> Iterator[str]:
    for which, side in (("first", made.first), ("second", made.second)):
        for text, count in side.contradictions.items():
            yield f"{which}: {text}, {count} module{'s' if count != 1 else ''}"


def _sizes(made: ModelDiff) -> Iterable[str]:
    first, second = made.first, made.second
    for name in sorted({*first.bytes_by_scheme, *second.bytes_by_scheme}):
        yield f"{name}: {_gb(first.bytes_by_scheme.get(name))} | {_gb(second.bytes_by_scheme.get(name))}"
    for part in ("text", "vision", "mtp"):
        a, b = first.bytes_by_part.get(part), second.bytes_by_part.get(part)
        if a is not None or b is not None:
            yield f"{part}, all of it: {_gb(a)} | {_gb(b)}"
    yield f"files: {_gb(first.file_bytes)} in {first.shards} | {_gb(second.file_bytes)} in {second.shards}"


def _gb(size_bytes: int | None) -> str:
    return DASH if size_bytes is None else number(size_bytes / GB)


def _cut(value: str | None) -> str:
    if value is None:
        return "none"
    return value if len(value) <= WIDEST else f"{value[:WIDEST]}…"
