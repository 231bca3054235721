"""One CUDA graph per decoding batch size: a step is filling one pinned buffer, one launch, and reading the ids back.

No batch is padded: a graph of n sequences reads and writes n rows. All graphs share one memory pool, since one runs at
a time, and one pair of input buffers, laid out anew for each size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class Model(Protocol):
    """What a graph runs: engine.models.fused, or a test's stand-in."""

    def forward(self, step: Step, caches: Caches) -> Tensor: ...

    def head(self, hidden: Tensor) -> Tensor: ...


class Inputs:
    """The integers of one step: for n sequences, n of each vector, then n rows of the block table, all int64."""

    def __init__(self, max_sequences: int, table_width: int, device: torch.device) -> None:
        self.width = table_width
        size = max_sequences * (len(VECTORS) + table_width)
        self.host = torch.zeros(size, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.device = torch.zeros(size, dtype=torch.int64, device=device)
        self._array = self.host.numpy()

    def size(self, n: int) -> int:
        """Elements in use for n sequences."""
        return n * (len(VECTORS) + self.width)

    def upload(self, n: int) -> None:
        """Queue the copy; the host side must not change before the step is over."""
        self.device[: self.size(n)].copy_(self.host[: self.size(n)], non_blocking=True)

    def step(self, n: int) -> Step:
        """Views of the device side."""
        vectors = {name: self.device[i * n : (i + 1) * n] for i, name in enumerate(VECTORS)}
        lengths = vectors.pop("lengths")
        table = self.device[len(VECTORS) * n : self.size(n)].view(n, self.width)
        return Step(**vectors, decodes=n, pages=None, runs=(), block_table=table, lengths=lengths, chunks=None)

    def fill(self, segments: Sequence[Segment], block_tokens: int) -> None:
        """Raises ValueError where a segment's blocks do not cover its token, or are more than a row holds."""
        n = len(segments)
        vectors = self._array[: len(VECTORS) * n].reshape(len(VECTORS), n)
        table = self._array[len(VECTORS) * n : self.size(n)].reshape(n, self.width)
        for i, segment in enumerate(segments):
            position = segment.position
            used = position // block_tokens + 1
            if not used <= len(segment.block_ids) or used > self.width:
                raise ValueError(
                    f"request {segment.request_id}: {len(segment.block_ids)} KV blocks of {block_tokens} tokens, but "
                    f"its step ends at token {position + 1} and a table row holds {self.width}"
                )
            slot = segment.block_ids[used - 1] * block_tokens + position % block_tokens
            vectors[:, i] = (segment.token_ids[0], position, slot, segment.state_slot, position + 1)
            table[i, :used] = segment.block_ids[:used]

    def fill_idle(self, n: int) -> None:
        """Something valid to run before any request exists: one token each, block 0, slots all different."""
        self._array[: self.size(n)] = 0
        vectors = self._array[: len(VECTORS) * n].reshape(len(VECTORS), n)
        vectors[VECTORS.index("state_slots")] = np.arange(n)
        vectors[VECTORS.index("lengths")] = 1


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
        self.host_ids = torch.zeros(self.max_sequences, dtype=torch.int64, pin_memory=device.type == "cuda")
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

    def run(self, segments: Sequence[Segment]) -> tuple[list[int], Tensor]:
        """The step -> (the most probable id of each row, logits bf16 [n, vocab_size], valid until the next run)."""
        n = len(segments)
        self.inputs.fill(segments, self.caches.block_tokens)
        self._replays[n]()
        if self.ids.is_cuda:
            torch.cuda.current_stream(self.ids.device).synchronize()
        ids: list[int] = self.host_ids[:n].tolist()
        return ids, self._logits[n]

    @torch.inference_mode()
    def _capture_all(self, capture: Capture) -> None:
        """Largest first, so that the pool is as large as it gets."""
        for n in range(self.max_sequences, 0, -1):
            self.inputs.fill_idle(n)
            if n == self.max_sequences:
                self._queue(n)  # what is set up on first use may not be part of a graph
            self._replays[n] = capture(lambda n=n: self._queue(n))  # type: ignore[misc]

    def _queue(self, n: int) -> None:
        self.inputs.upload(n)
        self._logits[n] = self.model.head(self.model.forward(self.inputs.step(n), self.caches))
        sample_cuda.argmax(self._logits[n], self.ids[:n], self._argmax, dependent=True)
        self.host_ids[:n].copy_(self.ids[:n], non_blocking=True)
