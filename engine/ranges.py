"""NVTX ranges for a profiler's time line: prefill and decode steps, and groups of layers. ENGINE_NVTX=1 turns them on.

Off, nothing is there to pay for: `annotated` returns the runner itself, `grouped` the iterator it is given. Which one
it is was decided when the model was built; no step asks again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from engine.batch import Batch, Ticket

SWITCH = "ENGINE_NVTX"
DOMAIN = "engine"
GROUP = 4
"""Layers a range: three Gated DeltaNet and one attention layer, the pattern that repeats."""

T = TypeVar("T")
Grouped = Callable[[Iterable[T]], Iterable[T]]


class Marker(Protocol):
    """The part of the nvtx module that is used."""

    def push_range(self, message: str, *, domain: str) -> Any: ...

    def pop_range(self, *, domain: str) -> Any: ...


class Runs(Protocol):
    def submit(self, batch: Batch) -> Ticket: ...

    def recover(self) -> None: ...

    def info(self) -> dict[str, object]: ...


class AnnotatedRunner:
    """A runner whose every step is a range, named by what is in the batch: the host's part, from inputs to launch."""

    def __init__(self, runner: Runs, marker: Marker) -> None:
        self._runner, self._marker = runner, marker

    def submit(self, batch: Batch) -> Ticket:
        self._marker.push_range(title(batch), domain=DOMAIN)
        try:
            return self._runner.submit(batch)
        finally:
            self._marker.pop_range(domain=DOMAIN)

    def recover(self) -> None:
        self._runner.recover()

    def info(self) -> dict[str, object]:
        return self._runner.info()


def title(batch: Batch) -> str:
    """ "decode 8", "prefill 1024", or "prefill 1000 decode 24" for a mixed step."""
    prompts = sum(len(s.token_ids) for s in batch.segments if len(s.token_ids) > 1)
    decodes = sum(len(s.token_ids) == 1 for s in batch.segments)
    parts = [f"prefill {prompts}"] if prompts else []
    return " ".join([*parts, *([f"decode {decodes}"] if decodes else [])])


def annotated(runner: Runs, marker: Marker | None = None) -> Runs:
    """The runner itself, unless the switch is on. marker: a test's stand-in, which turns it on."""
    found = marker or _nvtx()
    return runner if found is None else AnnotatedRunner(runner, found)


def plain(layers: Iterable[T]) -> Iterable[T]:
    return layers


def grouped(marker: Marker | None = None) -> Grouped[Any]:
    """What a forward pass iterates its layers through: `plain`, or a range around each GROUP of them.

    In a CUDA graph the ranges stand at its capture: a replay is one launch and has none.
    """
    found = marker or _nvtx()
    if found is None:
        return plain
    mark = found

    def ranged(layers: Iterable[T]) -> Iterator[T]:
        opened = False
        try:
            for index, layer in enumerate(layers):
                if index % GROUP == 0:
                    if opened:
                        mark.pop_range(domain=DOMAIN)
                    mark.push_range(f"layers {index}-{index + GROUP - 1}", domain=DOMAIN)
                    opened = True
                yield layer
        finally:
            if opened:
                mark.pop_range(domain=DOMAIN)

    return ranged


def _nvtx() -> Marker | None:
    if os.environ.get(SWITCH) != "1":
        return None
    import nvtx

    marker: Marker = nvtx
    return marker
