"""What `gate model diff` answers, as data; sizes in bytes."""

from __future__ import annotations

from gate.observe.rows import Row

EQUAL, DIFFERENT = 0, 1
"""Exit codes, as diff has them."""


class Side(Row):
    """One checkpoint."""

    name: str
    """As it was asked for."""
    folder: str
    shards: int
    file_bytes: int
    """Headers included."""
    bytes_by_scheme: dict[str, int]
    """Of the text model's modules, scales included."""
    bytes_by_part: dict[str, int]
    """text, vision, mtp, as far as they are there."""
    contradictions: dict[str, int]
    """`layers.*.mlp.up_proj: configuration says …` -> modules."""


class ModuleDiff(Row):
    """One kind of module that is stored differently, over all layers that differ alike."""

    name: str
    """layers.*.mlp.gate_proj"""
    first: str | None
    """Scheme, or shape where only that differs; None: not there."""
    second: str | None
    layers: tuple[int, ...] = ()
    """Which; empty for a module outside the layers."""
    modules: int
    """How many; more than the layers where a layer has several, as experts."""
    of: int
    """Modules of that name in either checkpoint."""
    of_layers: int = 0


class Setting(Row):
    name: str
    first: str | None
    second: str | None


class ModelDiff(Row):
    first: Side
    second: Side
    modules: tuple[ModuleDiff, ...]
    equal_modules: dict[str, str]
    """Kinds of modules that are alike in all layers -> their scheme, or `several schemes`."""
    settings: tuple[Setting, ...]
    """What the configurations say differently; KV scheme first."""
    ignored_by_first: tuple[str, ...]
    """Left unquantised by the word of one configuration alone, layers collapsed."""
    ignored_by_second: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """Other shards, or other words for which modules are left alone, are no difference."""
        parts = set(self.first.bytes_by_part) == set(self.second.bytes_by_part)
        return EQUAL if parts and not self.modules and not self.settings else DIFFERENT
