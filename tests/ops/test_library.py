"""How a kernel's C function is called: pointers, numbers and the stream arrive as they were given."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest
import torch

from engine.kernels import library
from engine.kernels.library import KernelError

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile a stand-in for the kernels")

SOURCE = """
#include <stddef.h>
int put(float* out, const float* absent, int count, float value, int last, void* stream) {
    for (int i = 0; i < count; i++) out[i] = value + (absent ? 1000.f : 0.f);
    out[count - 1] = (float)last + (stream == (void*)7 ? 0.5f : 0.f);
    return 0;
}
int refuse(const float* x, int n, void* stream) { return 1; }
"""
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _compiled(monkeypatch, tmp_path):
    (tmp_path / "put.c").write_text(SOURCE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "put.so", tmp_path / "put.c"], check=True)
    library._function.cache_clear()
    made = ctypes.CDLL(str(tmp_path / "put.so"))
    monkeypatch.setattr(library, "load", lambda _: made)
    monkeypatch.setattr(library, "arch_of", lambda _: "90a")
    monkeypatch.setattr(library, "_stream", lambda _: 7)
    yield
    library._function.cache_clear()


def test_arguments_arrive():
    out = torch.zeros(4)
    library.call("put", CPU, out, None, 4, 0.25, 1)
    assert out.tolist() == [0.25, 0.25, 0.25, 1.5]


def test_what_was_absent_at_first_may_be_there_and_a_whole_number_a_float():
    out = torch.zeros(3)
    library.call("put", CPU, out, None, 3, 0.25, 1)
    library.call("put", CPU, out, torch.zeros(1), 3, 2, True)
    assert out.tolist() == [1002.0, 1002.0, 1.5]


def test_large_addresses_are_not_cut():
    """A pointer without a type would be passed as 32 bits."""
    out = torch.zeros(50_000_000 // 4)  # from mmap, so far above 4 GiB
    assert out.data_ptr() > 1 << 32
    library.call("put", CPU, out, None, 2, 1.0, 3)
    assert out[:3].tolist() == [1.0, 3.5, 0.0]


def test_an_error_code_names_shapes_and_numbers():
    with pytest.raises(KernelError, match=r"refuse\(\(2, 3\), 5\) returned CUDA error 1: invalid value"):
        library.call("refuse", CPU, torch.zeros(2, 3), 5)


def test_a_fraction_for_a_whole_number_is_refused():
    library.call("put", CPU, torch.zeros(2), None, 2, 1.0, 3)
    with pytest.raises(ctypes.ArgumentError):
        library.call("put", CPU, torch.zeros(2), None, 2.5, 1.0, 3)


@pytest.mark.gpu
def test_the_stream_is_the_current_one(monkeypatch):
    monkeypatch.undo()
    device, side = torch.device("cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert library._stream(device) == side.cuda_stream
    assert library._stream(torch.device("cuda", 0)) == torch.cuda.current_stream().cuda_stream
