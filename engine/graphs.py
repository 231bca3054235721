"""One CUDA graph per decoding batch size: a step is one upload of integers, one launch, and its ids read back.

No batch is padded: a graph of n sequences reads and writes n rows. All graphs share one memory pool, since one runs at
a time, and one device buffer of inputs, laid out anew for each size.

Two steps may be queued: the second takes its token ids from the first on the device. What the host writes and reads is
therefore double, and lies outside the graphs: a copy inside one would read its pinned buffer at some later time, when
the host may be filling it for the step after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from engine.batch import Batch, Segment
from engine.kernels.skinny import MAX_TOKENS
from engine.models.caches import Caches
from engine.models.step import Step
from engine.ops.sample import cuda as sample_cuda

VECTORS = ("token_ids", "positions", "kv_slots", "state_slots", "lengths")
LANES = 2
"""Steps that may be queued at once."""


class Model(Protocol):
    """What a graph runs: engine.models.fused, or a test's stand-in."""

    def forward(self, step: Step, caches: Caches) -> Tensor: ...

    def greedy(self, hidden: Tensor, ids: Tensor, space: sample_cuda.ArgmaxWorkspace) -> Tensor: ...


class Inputs:
    """The integers of one step: for n sequences, n of each vector, then n rows of the block table, all int64."""

    def __init__(self, max_sequences: int, table_width: int, device: torch.device) -> None:
        self.width = table_width
        size = max_sequences * (len(VECTORS) + table_width)
        self.host = [pinned(size, device) for _ in range(LANES)]
        self.device = torch.zeros(size, dtype=torch.int64, device=device)

    def size(self, n: int) -> int:
        """Elements in use for n sequences."""
        return n * (len(VECTORS) + self.width)

    def upload(self, n: int, lane: int) -> None:
        """Queue the copy; that lane of the host side must not change before the step is over."""
        self.device[: self.size(n)].copy_(self.host[lane][: self.size(n)], non_blocking=True)

    def vector(self, name: str, n: int) -> Tensor:
        """A view of the device side, int64 [n]."""
        start = VECTORS.index(name) * n
        return self.device[start : start + n]

    def step(self, n: int, fed_ids: Tensor) -> Step:
        """Views of the device side."""
        vectors = {name: self.vector(name, n) for name in VECTORS if name != "lengths"}
        table = self.device[len(VECTORS) * n : self.size(n)].view(n, self.width)
        lengths = self.vector("lengths", n)
        return Step(
            **vectors,
            decodes=n,
            pages=None,
            runs=(),
            block_table=table,
            lengths=lengths,
            chunks=None,
            fed_ids=fed_ids,
        )

    def fill(self, segments: Sequence[Segment], block_tokens: int, lane: int) -> None:
        """Raises ValueError where a segment's blocks do not cover its token, or are more than a row holds."""
        n = len(segments)
        array = self.host[lane].numpy()
        vectors = array[: len(VECTORS) * n].reshape(len(VECTORS), n)
        table = array[len(VECTORS) * n : self.size(n)].reshape(n, self.width)
        for i, segment in enumerate(segments):
            position = segment.position
            used = position // block_tokens + 1
            if not used <= len(segment.block_ids) or used > self.width:
                raise ValueError(
                    f"request {segment.request_id}: {len(segment.block_ids)} KV blocks of {block_tokens} tokens, but "
                    f"its step ends at token {position + 1} and a table row holds {self.width}"
                )
            slot = segment.block_ids[used - 1] * block_tokens + position % block_tokens
            token = segment.token_ids[0] if segment.feed is None else -1 - segment.feed
            vectors[:, i] = (token, position, slot, segment.state_slot, position + 1)
            table[i, :used] = segment.block_ids[:used]

    def fill_idle(self, n: int, lane: int) -> None:
        """Something valid to run before any request exists: one token each, block 0, slots all different."""
        array = self.host[lane].numpy()
        array[: self.size(n)] = 0
        vectors = array[: len(VECTORS) * n].reshape(len(VECTORS), n)
        vectors[VECTORS.index("state_slots")] = np.arange(n)
        vectors[VECTORS.index("lengths")] = 1


def _event(device: torch.device) -> torch.cuda.Event | None:
    return torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def recorded(device: torch.device) -> torch.cuda.Event | None:
    """An event behind what is queued; None on a CPU."""
    event = _event(device)
    if event is not None:
        event.record()
    return event


def pinned(size: int, device: torch.device) -> Tensor:
    """int64 [size] of the host, from which and to which copies need not wait."""
    return torch.zeros(size, dtype=torch.int64, pin_memory=device.type == "cuda")


Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""From a function that queues work to one that queues the same work again."""


class CudaCapture:
    """`Capture` by CUDA graphs in one memory pool."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        return graph.replay


@dataclass(slots=True)
class Launched:
    """A queued step."""

    lane: int
    logits: Tensor
    """bf16 [n, vocab_size], valid until the next launch."""
    _host_ids: Tensor
    _event: torch.cuda.Event | None
    _lanes: list[Launched | None]

    def ids(self) -> list[int]:
        """The most probable id of each row, when the step is over; frees the lane."""
        if self._event is not None:
            self._event.synchronize()
        ids: list[int] = self._host_ids.tolist()
        self._lanes[self.lane] = None
        return ids


class DecodeGraphs:
    """Every step that is nothing but decoding, up to `max_sequences` of them."""

    def __init__(
        self, model: Model, caches: Caches, max_sequences: int, max_model_len: int, capture: Capture | None = None
    ) -> None:
        self.model, self.caches = model, caches
        self.max_sequences = min(max_sequences, MAX_TOKENS)
        device = caches.kv.device
        self.inputs = Inputs(self.max_sequences, -(-max_model_len // caches.block_tokens), device)
        self.ids = torch.zeros(self.max_sequences, dtype=torch.int64, device=device)
        """Of the step queued last: the next may take its token ids here."""
        self._host_ids = [pinned(self.max_sequences, device) for _ in range(LANES)]
        self._events = [_event(device) for _ in range(LANES)]
        self._lanes: list[Launched | None] = [None] * LANES
        self._next = 0
        self._argmax = sample_cuda.workspace(self.max_sequences, device)
        self._logits: dict[int, Tensor] = {}
        self._replays: dict[int, Callable[[], None]] = {}
        self._capture_all(capture or CudaCapture())

    def takes(self, batch: Batch) -> bool:
        """One token each, few enough, and no log-probs of the prompt, which need the hidden states."""
        segments = batch.segments
        return len(segments) <= self.max_sequences and all(
            len(s.token_ids) == 1 and s.params.prompt_logprobs is None for s in segments
        )

    def launch(self, segments: Sequence[Segment]) -> Launched:
        """Queue a step. Either every segment takes its id from the step queued before (`feed`), or none does.

        Raises RuntimeError while LANES steps are queued and not read; ValueError as Inputs.fill does.
        """
        n, lane = len(segments), self._next
        if self._lanes[lane] is not None:
            raise RuntimeError(f"{LANES} steps are queued; read the ids of the first before the next")
        fed = [s.feed is not None for s in segments]
        if any(fed) is not all(fed):
            raise ValueError("a step takes all its ids from the step before, or none")
        self.inputs.fill(segments, self.caches.block_tokens, lane)
        self.inputs.upload(n, lane)
        self._replays[n]()
        self._host_ids[lane][:n].copy_(self.ids[:n], non_blocking=True)
        event = self._events[lane]
        if event is not None:
            event.record()
        launched = Launched(lane, self._logits[n], self._host_ids[lane][:n], event, self._lanes)
        self._lanes[lane] = launched
        self._next = (lane + 1) % LANES
        return launched

    def drop(self) -> None:
        """Nobody will read what is queued. To be called when the device is done with it."""
        self._lanes[:] = [None] * LANES

    def run(self, segments: Sequence[Segment]) -> tuple[list[int], Tensor]:
        """One step by itself -> (the most probable id of each row, logits as in Launched)."""
        launched = self.launch(segments)
        return launched.ids(), launched.logits

    @torch.inference_mode()
    def _capture_all(self, capture: Capture) -> None:
        """Largest first, so that the pool is as large as it gets."""
        for n in range(self.max_sequences, 0, -1):
            self.inputs.fill_idle(n, 0)
            self.inputs.upload(n, 0)
            if n == self.max_sequences:
                self._queue(n)  # what is set up on first use may not be part of a graph
            if self.ids.is_cuda:
                torch.cuda.synchronize(self.ids.device)  # the next size fills the same buffer
            self._replays[n] = capture(lambda n=n: self._queue(n))  # type: ignore[misc]

    def _queue(self, n: int) -> None:
        hidden = self.model.forward(self.inputs.step(n, self.ids), self.caches)
        self._logits[n] = self.model.greedy(hidden, self.ids[:n], self._argmax)
