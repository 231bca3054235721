"""From pieces of files to one tensor on the device, through host memory of a fixed size.

A CUDA device is fed by two pinned buffers in turn: reading and copying overlap, and a buffer takes as many pieces as
fit before it is copied, so that the block scales of 256 experts are one copy. A CPU's tensor is read into directly.

Rejected: a host tensor of each weight's size, whose fresh pages cost more time than the read, and whose pageable copy
goes through a staging buffer of the driver's own anyway.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

BUFFER_BYTES = 32 * 2**20

Piece = tuple[Path, int, int]
"""A file, the offset of a piece in it, its bytes."""


class Sink(Protocol):
    """Where bytes are read to, in order."""

    def begin(self, out: Tensor) -> None:
        """What follows goes to `out`, uint8 [nbytes], from its start."""

    def room(self, nbytes: int) -> memoryview:
        """Where the next 1 to nbytes bytes can be put."""

    def took(self, nbytes: int) -> None:
        """So many of them were."""

    def end(self) -> None:
        """`out` is written, or will be before anything that is launched after this."""


class Direct:
    """Into a tensor of the CPU."""

    def begin(self, out: Tensor) -> None:
        self._view = memoryview(out.numpy().data)

    def room(self, nbytes: int) -> memoryview:
        return self._view[:nbytes]

    def took(self, nbytes: int) -> None:
        self._view = self._view[nbytes:]

    def end(self) -> None:
        del self._view


class Staged:
    """Onto a device. One per device; not thread-safe."""

    def __init__(self, device: torch.device, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._cuda = device.type == "cuda"
        self._buffers = [torch.empty(buffer_bytes, dtype=torch.uint8, pin_memory=self._cuda) for _ in range(2)]
        self._views = [memoryview(buffer.numpy().data) for buffer in self._buffers]
        self._copied: list[torch.cuda.Event | None] = [None, None]
        self._turn = 0
        self._filled = 0

    def begin(self, out: Tensor) -> None:
        self._out = out
        self._filled = 0

    def room(self, nbytes: int) -> memoryview:
        if self._filled == len(self._views[self._turn]):
            self._flush()
        copied = self._copied[self._turn]
        if self._filled == 0 and copied is not None:
            copied.synchronize()
        return self._views[self._turn][self._filled : self._filled + nbytes]

    def took(self, nbytes: int) -> None:
        self._filled += nbytes

    def end(self) -> None:
        self._flush()
        del self._out

    def _flush(self) -> None:
        self._out[: self._filled].copy_(self._buffers[self._turn][: self._filled], non_blocking=True)
        if self._cuda:
            self._copied[self._turn] = torch.cuda.current_stream(self._out.device).record_event()
        self._out = self._out[self._filled :]
        self._turn, self._filled = 1 - self._turn, 0


def fill(sink: Sink, out: Tensor, pieces: Iterable[Piece]) -> int | None:
    """Read all pieces into `out`, uint8 of their total size, one behind the other.

    Returns None, or the number of the piece in which its file ended. A file is opened once for pieces that follow each
    other.
    """
    sink.begin(out)
    opened: Path | None = None
    with ExitStack() as files:
        for number, (path, offset, nbytes) in enumerate(pieces):
            if path != opened:
                files.close()
                file, opened = files.enter_context(path.open("rb", buffering=0)), path
            end = offset + nbytes
            while offset < end:
                count = os.preadv(file.fileno(), [sink.room(end - offset)], offset)
                if not count:
                    return number
                sink.took(count)
                offset += count
    sink.end()
    return None
