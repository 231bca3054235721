"""engine/devices: which device, what it refuses, how many threads."""

from __future__ import annotations

import os

import pytest
import torch

from engine.devices import WEIGHT_BYTES_PER_THREAD, free_bytes, limit_threads, resolve_device
from engine.errors import PreconditionError


def test_auto_is_the_cpu_without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto", allow_reference=False) == torch.device("cpu")


def test_cuda_without_a_device_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(PreconditionError, match="torch sees no CUDA device; use --device cpu"):
        resolve_device("cuda", allow_reference=True)


def test_missing_kernels_are_refused_by_name_unless_references_are_allowed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("engine.devices.missing_kernels", lambda *_: ("gdn", "moe"))
    for name in ("auto", "cuda"):
        with pytest.raises(PreconditionError, match=r"device cuda: no kernel for gdn, moe; --allow-reference"):
            resolve_device(name, allow_reference=False)
        assert resolve_device(name, allow_reference=True) == torch.device("cuda")


@pytest.mark.parametrize(
    ("cores", "threads_worth", "expected"), [(1, 100, 1), (2, 100, 1), (8, 100, 7), (8, 3, 3), (8, 0, 1)]
)
def test_threads_leave_a_core_and_follow_the_model(cores, threads_worth, expected, monkeypatch):
    chosen = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    assert limit_threads(threads_worth * WEIGHT_BYTES_PER_THREAD) == expected
    assert chosen == [expected]


def test_free_memory_of_the_cpu_is_plausible():
    assert 2**20 < free_bytes(torch.device("cpu")) < 2**50
