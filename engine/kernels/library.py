"""Load the compiled kernels and call them: plain C functions, device pointers, the current stream."""

from __future__ import annotations

import ctypes
import functools
import json

import torch
from torch import Tensor

from engine.kernels.build import TARGETS, BuildError, build, library_path

ERRORS = {
    1: "invalid value (a shape outside the contract)",
    9: "invalid configuration (more shared memory than a block has)",
}


class KernelError(RuntimeError):
    """A kernel function returned a CUDA error code."""


@functools.cache
def arch_of(device: torch.device) -> str:
    """ "90a" or "121a". Raises BuildError, naming the device, for a GPU no library is built for."""
    major, minor = torch.cuda.get_device_capability(device)
    arch = f"{major}{minor}a"
    if arch not in TARGETS:
        raise BuildError(f"found {torch.cuda.get_device_name(device)} (sm_{arch}); expected sm_90a or sm_121a")
    return arch


@functools.cache
def load(arch: str) -> ctypes.CDLL:
    """The library for these sources; built first when it is not there yet."""
    path = library_path(arch)
    library = ctypes.CDLL(str(path if path.exists() else build(arch).path))
    library.engine_manifest.restype = ctypes.c_char_p
    return library


def manifest(arch: str) -> dict[str, object]:
    """What the binary itself says it was made from."""
    parsed: dict[str, object] = json.loads(load(arch).engine_manifest())
    return parsed


def call(name: str, device: torch.device, *arguments: Tensor | float | None) -> None:
    """Launch `name` on the current stream. Tensors become pointers, None a null pointer, int and float what they are.

    Raises KernelError with the arguments.
    """
    function = getattr(load(arch_of(device)), name)
    stream = torch.cuda.current_stream(device).cuda_stream
    error = function(*(_c_value(a) for a in arguments), ctypes.c_void_p(stream))
    if error:
        shown = ", ".join(str(tuple(a.shape)) if isinstance(a, Tensor) else str(a) for a in arguments)
        raise KernelError(f"{name}({shown}) returned CUDA error {error}: {ERRORS.get(error, 'see cudaError_t')}")


def _c_value(argument: Tensor | float | None) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_float:
    if argument is None:
        return ctypes.c_void_p(None)
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_int(argument) if isinstance(argument, int) else ctypes.c_float(argument)
