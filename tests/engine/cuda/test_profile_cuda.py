"""Windows of the profiler's own thread on a GPU: kernels of the engine's thread and of graphs captured before them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from engine.profile import WindowProfiler

pytestmark = pytest.mark.gpu


def test_each_kernel_of_a_graph_that_another_thread_replays(tmp_path):
    """Two windows, as `gate profile` opens: what was launched between them is in neither."""
    values, graph = torch.ones(1 << 20, device="cuda"), torch.cuda.CUDAGraph()
    values.mul_(1.0)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(3):
            values.mul_(1.0)

    def replay(times: int) -> None:
        for _ in range(times):
            graph.replay()

    windows, counts = WindowProfiler(tmp_path), []
    with ThreadPoolExecutor(1) as engine:
        for times in (2, 7):
            engine.submit(replay, 1).result()
            torch.cuda.synchronize()
            windows.start()
            engine.submit(replay, times).result()
            events = json.loads(windows.stop().read_bytes())["traceEvents"]
            counts.append(sum(event.get("cat") == "kernel" for event in events))
    assert counts == [6, 21]
