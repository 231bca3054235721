"""Work of different sequences side by side on one GPU, where each alone leaves most of it idle.

A scan over the chunks of one prompt is one block per head and half of the value dimensions: 64 blocks in the 35B, 96 in
the 27B, on 132 multiprocessors that hold several each. One prompt after another, eight prompts of 1,024 tokens took
eight times as long as one (results/h200/bench/20261130-60614b8-prefill-4-layers.txt). Rejected: one launch over the
chunks of all sequences, which needs every kernel of the chain to look up whose chunk it has; streams give the same
overlap, and fill the gaps between launches too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

WORTH_IT = 4
"""Jobs. Of four layers of the 35B, prompts of 1,024 tokens side by side took 8 % longer by twos than one after another,
3 % less by eights, 6 % by sixteens; of the 27B as long, 2 % less and as long
(results/h200/bench/20261130-67e4b19-l2-and-side-streams.txt)."""
STREAMS = 4
"""At once. What a job allocates is kept for its stream: each costs the largest job's memory."""


class SideStreams:
    """A few streams of one device; on a CPU, where jobs run in turn, none."""

    def __init__(self, device: torch.device, count: int = STREAMS) -> None:
        cuda = device.type == "cuda"
        self.streams = [torch.cuda.Stream(device) for _ in range(count)] if cuda else []  # type: ignore[no-untyped-call]

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Jobs that neither read nor write what another one writes; in order of what is queued before and behind them.

        A job's inputs and outputs must have been allocated before, and what it allocates must not outlive it: memory
        belongs to the stream that it was allocated on. A job that raises keeps later ones from being queued, and what
        is queued still comes before what follows: the caller's tensors may be let go.
        """
        if len(jobs) < WORTH_IT or not self.streams:
            for job in jobs:
                job()
            return
        main = torch.cuda.current_stream()
        used = self.streams[: len(jobs)]
        for stream in used:
            stream.wait_stream(main)
        try:
            for i, job in enumerate(jobs):
                with torch.cuda.stream(used[i % len(used)]):
                    job()
        finally:
            for stream in used:
                main.wait_stream(stream)
