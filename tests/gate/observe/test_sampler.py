"""Memory, machine and the sampler beside a leg: what cannot be read is None, never 0."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pynvml
import pytest

from gate.observe import gpu, machine, memory
from gate.observe import sampler as samplers
from gate.observe.sampler import Sampler
from tests.gate import struck


def test_tree_counts_children_and_a_dead_process_is_unknown() -> None:
    code = "print('up', flush=True); import time; time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"up\n"  # before it, it has next to no memory
        pids = {process.pid for process in memory.tree(os.getpid())}
        assert {os.getpid(), child.pid} <= pids
        own = memory.rss_bytes(memory.tree(os.getpid()))
        alone = memory.rss_bytes(memory.tree(child.pid))
        assert own is not None
        assert alone is not None
        assert own > alone > 2**20
        pss = memory.pss_bytes(memory.tree(os.getpid()))
        assert pss is not None
        assert pss <= own
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert memory.tree(child.pid) == ()
    assert memory.rss_bytes(()) is None
    assert memory.pss_bytes(()) is None
    assert memory.tree(None) == ()


def test_sampler_leaves_rows_peaks_and_foreign_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "MIN_LOAD_WINDOW_S", 0.0)
    with Sampler("leg", os.getpid()) as sampler:
        pass
    names = {row.name for row in sampler.rows}
    assert {"server_rss_bytes", "host_available_bytes"} <= names
    assert {row.leg_id for row in sampler.rows} == {"leg"}
    assert sampler.peak_rss_bytes is not None
    assert sampler.foreign_cores is not None


@pytest.mark.parametrize("moment", ["start", "join"])
def test_an_interrupt_cuts_neither_the_start_nor_the_end_of_its_thread(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut there, Python's lock raises a RuntimeError in place of the interrupt, or the thread goes on sampling."""
    sampler = Sampler("leg", os.getpid())
    whole = struck.at(monkeypatch, sampler._thread, moment)
    with pytest.raises(KeyboardInterrupt), sampler:
        pass
    threading.Thread.join(sampler._thread, 10)
    assert whole == [moment]
    assert not sampler._thread.is_alive()


def test_short_leg_has_no_foreign_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "MIN_LOAD_WINDOW_S", 1e6)
    with Sampler("leg", os.getpid()) as sampler:
        pass
    assert sampler.foreign_cores is None


def test_attached_server_has_no_memory_and_no_foreign_load() -> None:
    with Sampler("leg", None) as sampler:
        pass
    assert (sampler.peak_rss_bytes, sampler.gpu_peak_bytes, sampler.foreign_cores) == (None, None, None)
    assert {row.value for row in sampler.rows if row.name == "server_rss_bytes"} == {None}


def test_machine_names_its_context_and_host_is_a_folder_name(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = machine.machine()
    assert {"cpu", "cores", "memory", "kernel", "boot_id", "python"} <= facts.keys()
    assert all(facts.values())
    monkeypatch.setenv("GATE_HOST", "../box one")
    assert machine.host() == "box-one"


def test_machine_without_gpu_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    assert (gpu.gpus(), gpu.driver(), gpu.sample()) == ((), None, {})
    assert gpu.bytes_of(frozenset({1}), gpu.users(None)) is None
