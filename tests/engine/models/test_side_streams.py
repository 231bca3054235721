"""Jobs of different sequences: each runs once; on a GPU, behind what was queued before, before what comes next."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from engine.models.side_streams import SideStreams


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_each_job_runs_once(count):
    done: list[int] = []
    SideStreams(torch.device("cpu")).run([lambda i=i: done.append(i) for i in range(count)])
    assert done == list(range(count))


class Stream:
    """What a stream is told, for a machine without one."""

    def __init__(self, name):
        self.name, self.waited = name, []

    def wait_stream(self, other):
        self.waited.append(other.name)


def test_after_a_job_that_raises_the_streams_are_waited_for(monkeypatch):
    """Else the memory that the jobs before it still write would be given to somebody else."""
    main, side = Stream("main"), SideStreams(torch.device("cpu"))
    side.streams = [Stream("a"), Stream("b")]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    done: list[int] = []

    def fail():
        raise torch.OutOfMemoryError("no room")

    jobs = [lambda: done.append(0), lambda: done.append(1), fail, lambda: done.append(3)]
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        side.run(jobs)
    assert done == [0, 1]
    assert [stream.waited for stream in side.streams] == [["main"], ["main"]]
    assert main.waited == ["a", "b"]


@pytest.mark.gpu
@pytest.mark.parametrize("count", [3, 4, 9])
def test_jobs_lie_between_what_is_before_and_behind(count):
    """A long product before, whose result each job reads; behind, their sum. Without the waits one would be stale."""
    side = SideStreams(torch.device("cuda"))
    a = torch.ones(4096, 4096, device="cuda") / 4096
    outs = [torch.zeros(4096, 4096, device="cuda") for _ in range(count)]
    source = torch.zeros_like(a)
    torch.cuda.synchronize()
    for _ in range(20):
        source.copy_(a @ a @ a)
    side.run([lambda out=out, i=i: out.copy_(source @ a + i) for i, out in enumerate(outs)])
    total = sum(outs[1:], outs[0])
    expected = count / 4096 + count * (count - 1) / 2
    assert torch.allclose(total, torch.full_like(total, expected), rtol=1e-4)
