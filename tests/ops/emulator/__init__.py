"""Kernels on a CPU: engine/ops/*/kernel.cu, compiled by g++ against emulated headers, called as library.call does."""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.kernels.build import ENGINE, SHIPPED, TARGETS, Variant
from engine.kernels.library import KernelError

HOPPER, BLACKWELL = (TARGETS[arch].max_shared_bytes for arch in ("90a", "121a"))
"""Shared memory of a block: it decides how many warps a block has, and what fits."""
HERE = Path(__file__).resolve().parent
EMULATED = ("async.cuh", "launch.cuh", "mma.cuh", "wgmma.cuh")
WARNINGS = ("-Wno-attributes", "-Wno-unknown-pragmas")
# A fortified _longjmp takes another stack for an overwritten one. And a process has one copy of a GNU unique symbol,
# such as what is static in a template: kernels for 227 KB of shared memory wrote to the 99 KB of those loaded first.
FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-U_FORTIFY_SOURCE", "-fno-gnu-unique", "-x", "c++", *WARNINGS)

Call = Callable[..., None]


def compiler() -> str | None:
    return shutil.which("g++")


def build(op: str, source: str = "kernel", *, max_shared_bytes: int = HOPPER, variant: Variant = SHIPPED) -> Call:
    """A stand-in for engine.kernels.library.call that runs the kernels of this op's source here."""
    flags = (*FLAGS, *variant.flags)
    sources = [*sorted((ENGINE / "kernels").glob("*.cuh")), ENGINE / "ops" / op / f"{source}.cu"]
    emulated = sorted(path for path in HERE.rglob("*") if path.suffix in (".h", ".hpp", ".cuh"))
    digest = hashlib.sha256(f"{flags} {max_shared_bytes}".encode())
    for path in (*sources, *emulated):
        digest.update(path.read_bytes())
    path = Path(tempfile.gettempdir()) / f"engine-emulated-{op}-{source}-{digest.hexdigest()[:16]}.so"
    if not path.exists():
        _compile(sources, path, max_shared_bytes, flags)
    library = ctypes.CDLL(str(path))

    def call(name: str, _device: torch.device, *arguments: Tensor | float | None) -> None:
        error = getattr(library, name)(*(_c_value(a) for a in arguments), None)
        if error:
            raise KernelError(f"{name} returned CUDA error {error}")

    return call


def complaints(op: str, source: str, added: str, *, max_shared_bytes: int = HOPPER) -> str:
    """What the compiler says of this op's source with `added` behind it, such as a static_assert; nothing is made."""
    sources = [*sorted((ENGINE / "kernels").glob("*.cuh")), ENGINE / "ops" / op / f"{source}.cu"]
    with tempfile.TemporaryDirectory() as folder:
        return _run(Path(folder), sources, max_shared_bytes, [*FLAGS, "-fsyntax-only"], added).stderr


def _compile(sources: list[Path], path: Path, max_shared_bytes: int, flags: Sequence[str]) -> None:
    """In a copy of the tree: `__shared__` means two things there, and emulated headers stand in for the real ones."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        output = path.with_suffix(f".{root.name}.tmp")
        done = _run(root, sources, max_shared_bytes, [*flags, "-o", str(output)])
        assert done.returncode == 0, done.stderr[:4000]
        output.replace(path)


def _run(
    root: Path, sources: list[Path], max_shared_bytes: int, flags: Sequence[str], added: str = ""
) -> subprocess.CompletedProcess[str]:
    for source in sources:
        text = source.read_text()
        if source.name in EMULATED:
            text = (HERE / "kernels" / source.name).read_text()
        text = re.sub(r"extern __shared__ .*?(\w+) (\w+)\[\];", r"\1* \2 = (\1*)emulator::shared_memory;", text)
        target = root / source.relative_to(ENGINE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(re.sub(r"\b__shared__", "static", text) + (added if source == sources[-1] else ""))
    command = ["g++", *flags, f"-I{HERE / 'include'}", f"-DENGINE_MAX_SHARED_BYTES={max_shared_bytes}"]
    return subprocess.run([*command, str(root / sources[-1].relative_to(ENGINE))], capture_output=True, text=True)


def _c_value(argument: Tensor | float | None) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_float | None:
    if argument is None:
        return None
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_int(argument) if isinstance(argument, int) else ctypes.c_float(argument)
