"""Load the compiled kernels and call them: plain C functions, device pointers, the current stream.

They are the shipped ones, unless the process has chosen another variant before it loads any. tools/sanitize.py does so
in those that run tests; nothing in this package does, and no environment variable can, so that none is ever served.
"""

from __future__ import annotations

import ctypes
import functools
import json
from typing import Any

import torch
from torch import Tensor

from engine.kernels.build import SHIPPED, TARGETS, BuildError, Variant, build, library_path

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


_variant = SHIPPED


def choose(variant: Variant) -> None:
    """What `load` loads from now on. Raises KernelError where kernels are loaded: a process has one variant of them."""
    global _variant
    if load.cache_info().currsize:
        raise KernelError("found kernels loaded already; expected none; choose the variant before the first call")
    _variant = variant


@functools.cache
def load(arch: str) -> ctypes.CDLL:
    """The library for these sources; built first when it is not there yet. Raises BuildError where it cannot be had."""
    path = library_path(arch, _variant)
    try:
        library = ctypes.CDLL(str(path if path.exists() else build(arch, _variant).path))
    except OSError as error:  # of the linker, or of a folder that nothing can be written to
        raise BuildError(f"found {error}; expected {path}; `engine build --force` makes it anew") from error
    library.engine_manifest.restype = ctypes.c_char_p
    return library


def manifest(arch: str) -> dict[str, object]:
    """What the binary itself says it was made from."""
    parsed: dict[str, object] = json.loads(load(arch).engine_manifest())
    return parsed


def call(name: str, device: torch.device, *arguments: Tensor | float | None) -> None:
    """Launch `name` on the current stream. Tensors become pointers, None a null pointer, int and float what they are.

    Raises KernelError with the arguments. Written for speed: a prefill step of the 35B is some five hundred calls, and
    on a slow host the first token waits for it (docs/h200.md, run C: 34 to 45 ms for prompts of one length).
    """
    function = _function(name, arch_of(device))
    if function.argtypes is None:  # told once, so that ctypes converts plain numbers by itself
        function.argtypes = [*map(_c_type, arguments), ctypes.c_void_p]
    values = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
    error = function(*values, _stream(device))
    if error:
        shown = ", ".join(str(tuple(a.shape)) if isinstance(a, Tensor) else str(a) for a in arguments)
        raise KernelError(f"{name}({shown}) returned CUDA error {error}: {ERRORS.get(error, 'see cudaError_t')}")


_called: set[str] = set()


def called() -> list[str]:
    """What this process has launched by `call`, or recorded in a graph, since it began: names without `engine_`."""
    return sorted(name.removeprefix("engine_") for name in _called)


@functools.cache
def _function(name: str, arch: str) -> Any:
    function = getattr(load(arch), name)
    _called.add(name)
    return function


def _c_type(argument: Tensor | float | None) -> type[ctypes.c_void_p] | type[ctypes.c_int] | type[ctypes.c_float]:
    if argument is None or isinstance(argument, Tensor):
        return ctypes.c_void_p
    return ctypes.c_int if isinstance(argument, int) else ctypes.c_float


def _stream(device: torch.device) -> int:
    """The current stream's handle, without the object around it that torch.cuda.current_stream makes."""
    index = torch.cuda.current_device() if device.index is None else device.index
    handle: int = torch._C._cuda_getCurrentRawStream(index)
    return handle
