"""One CUDA graph for each of a few prompt lengths: a step that reads a prompt is one upload and one launch.

Launch by launch one host needed 13 ms for the 35B, and others 26 to 34, reckoned from eight layers and beside other
work; the kernels of a prompt of 1,024 tokens take 20.5 (results/h200-x2/bench, docs/h200.md). A prompt is padded to the
next length that has a graph; rows of padding are routed nowhere, write no key, and leave the recurrent state alone,
because the kernels read from the device how many rows are live, and which state slot is theirs.

A prompt that begins in the step, whole or its first chunk, is taken, alone or beside decoding sequences, which run
their own graph before it. That reads the weights once more: at 1,024 tokens beside 31 the step takes 1.014 of the time
of launches on the faster host, beside 16 and fewer less than it. Rejected: decoding rows among the prompt's, one
graph for each pair of numbers; exact lengths kept from one prompt to the next, which pays only where prompts have one
length, as a benchmark's do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.batch import Batch, Segment
from engine.graphs import Capture, CudaCapture, Model, pinned, recorded
from engine.models.caches import Caches
from engine.models.step import Run, Step
from engine.ops.sample import cuda as sample_cuda

ARCHS = ("90a",)
"""Where GDN's kernels read from the device what is live (ops/gdn/chunked)."""
LENGTHS = (*range(128, 1025, 128), *range(1280, 2049, 256))
"""Tokens. Of a prompt of more than 1,024 an eighth or less is padding."""
LONGEST = {"mixture": 1536, "dense": 256}
"""Tokens, of LENGTHS. For more the device waits for no host that was seen, and padding costs what it weighs: of the 35B
1,536 tokens take 26 ms by their graph, of the 27B 256 take 34 by the kernels' own time of eight layers."""
HEADER = ("live", "slot", "last")


class PromptInputs:
    """The integers of a step, all int64: HEADER, then `tokens` of each of ids, slots to write, slots to read."""

    def __init__(self, most: int, max_positions: int, device: torch.device) -> None:
        size = len(HEADER) + 3 * most
        self.host = pinned(size, device)
        self.device = torch.zeros(size, dtype=torch.int64, device=device)
        # Padding may lie past the last position that has a rotation.
        self.positions = torch.arange(most, device=device).clamp(max=max_positions - 1)

    def named(self, name: str) -> Tensor:
        """A view of the device side, int64 [1]."""
        at = HEADER.index(name)
        return self.device[at : at + 1]

    def step(self, tokens: int) -> Step:
        """Views of the device side, for a graph of so many tokens."""
        ids, write, read = self.device[len(HEADER) : len(HEADER) + 3 * tokens].view(3, tokens)
        live = self.named("live").view(torch.int32)[:1]  # the low half: these machines are little-endian
        return Step(
            token_ids=ids,
            positions=self.positions[:tokens],
            kv_slots=write,
            decodes=0,
            state_slots=ids[:0],
            pages=None,
            runs=(Run(0, tokens, 0, -1, read, self.named("slot")),),
            live=live,
        )

    def fill(self, segment: Segment, tokens: int, block_tokens: int) -> None:
        """Padding: id 0, written nowhere, and in place of its keys the first token's, which no live row sees.

        Raises ValueError where the segment's blocks do not cover its tokens.
        """
        live = len(segment.token_ids)
        if len(segment.block_ids) * block_tokens < live:
            raise ValueError(
                f"request {segment.request_id}: {len(segment.block_ids)} KV blocks of {block_tokens} tokens, but its "
                f"step ends at token {live}; the scheduler must extend the block table first"
            )
        array = self.host.numpy()
        array[: len(HEADER)] = (live, segment.state_slot, live - 1)
        ids, write, read = array[len(HEADER) : len(HEADER) + 3 * tokens].reshape(3, tokens)
        blocks = np.array(segment.block_ids, dtype=np.int64)
        slots = (blocks[:, None] * block_tokens + np.arange(block_tokens)).ravel()[:live]
        ids[:live], write[:live], read[:live] = segment.token_ids, slots, slots
        ids[live:], write[live:], read[live:] = 0, -1, slots[0]

    def fill_idle(self, tokens: int) -> None:
        """Something valid to run before any request exists: one token in slot 0, whose key is written nowhere."""
        array = self.host.numpy()
        array[:] = 0
        array[HEADER.index("live")] = 1
        array[len(HEADER) + tokens : len(HEADER) + 2 * tokens] = -1

    def upload(self, tokens: int) -> None:
        size = len(HEADER) + 3 * tokens
        self.device[:size].copy_(self.host[:size], non_blocking=True)


@dataclass(slots=True)
class Prompted:
    """A queued prompt."""

    logits: Tensor
    """bf16 [1, vocab_size] of its last live row, valid until the next launch."""
    _read: Callable[[], int]

    def id(self) -> int:
        """The most probable next id, when the step is over."""
        return self._read()


class PromptGraphs:
    """Steps of one prompt that begins, of at most the longest of LENGTHS tokens."""

    def __init__(
        self,
        model: Model,
        caches: Caches,
        max_tokens: int,
        max_positions: int,
        max_decodes: int,
        capture: Capture | None = None,
    ) -> None:
        """For steps of up to max_tokens, where LENGTHS go that far, of a model with max_positions, beside graphs for up
        to max_decodes sequences.
        """
        self.model, self.caches = model, caches
        self.lengths = LENGTHS[: bisect_left(LENGTHS, min(max_tokens, max_positions)) + 1]
        self.beside = max_decodes
        device = caches.kv.device
        self.inputs = PromptInputs(self.lengths[-1], max_positions, device)
        self._id = torch.zeros(1, dtype=torch.int64, device=device)
        self._host_id = pinned(1, device)
        self._argmax = sample_cuda.workspace(1, device)
        self._queued = False
        self._logits: dict[int, Tensor] = {}
        self._replays: dict[int, Callable[[], None]] = {}
        self._capture_all(capture or CudaCapture())

    def takes(self, batch: Batch) -> bool:
        """One prompt that begins, behind sequences that decode, and no log-probs of a prompt."""
        *decoding, last = batch.segments
        return (
            1 < len(last.token_ids) <= self.lengths[-1]
            and last.position == 0
            and last.zero_state
            and len(decoding) <= self.beside
            and all(len(s.token_ids) == 1 and not s.zero_state for s in decoding)
            and all(s.params.prompt_logprobs is None for s in batch.segments)
        )

    def launch(self, segment: Segment) -> Prompted:
        """Queue it. Raises RuntimeError while one is queued and not read; ValueError as PromptInputs.fill does."""
        if self._queued:
            raise RuntimeError("a prompt is queued; read its id before the next")
        tokens = self.lengths[bisect_left(self.lengths, len(segment.token_ids))]
        self.inputs.fill(segment, tokens, self.caches.block_tokens)
        self.inputs.upload(tokens)
        self._replays[tokens]()
        self._host_id.copy_(self._id, non_blocking=True)
        event = recorded(self._id.device)
        self._queued = True

        def read() -> int:
            if event is not None:
                event.synchronize()
            self._queued = False
            return int(self._host_id[0])

        return Prompted(self._logits[tokens], read)

    def drop(self) -> None:
        """Nobody will read what is queued. To be called when the device is done with it."""
        self._queued = False

    @torch.inference_mode()
    def _capture_all(self, capture: Capture) -> None:
        """Longest first, so that the pool is as large as it gets, and so are the Scratch's ones before any graph."""
        for tokens in reversed(self.lengths):
            self.inputs.fill_idle(tokens)
            self.inputs.upload(tokens)
            # What is set up on first use may not be part of a graph, and which products are taken goes by the length.
            self._queue(tokens)
            if self._id.is_cuda:
                torch.cuda.synchronize(self._id.device)  # the next length fills the same buffer
            self._replays[tokens] = capture(lambda tokens=tokens: self._queue(tokens))  # type: ignore[misc]

    def _queue(self, tokens: int) -> None:
        self.caches.zero_slots(self.inputs.named("slot"))
        hidden = self.model.forward(self.inputs.step(tokens), self.caches)
        last = hidden.index_select(0, self.inputs.named("last"))
        self._logits[tokens] = self.model.greedy(last, self._id, self._argmax)
