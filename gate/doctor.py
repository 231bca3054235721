"""What this machine can and cannot do for a gate run, one row per thing, each with what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import psutil

from gate import lock, recipe
from gate.errors import PASS, UNAVAILABLE, CheckpointError, GateError, LockHeldError
from gate.observe import gpu
from gate.preflight import checkpoint, hub
from gate.preflight.host_idle import BUSY_SHARE
from gate.units import gib, percent

State = Literal["yes", "limited", "no"]

PLAIN_WIDTH = 80
"""Columns where standard output is a file or a pipe."""

MIN_FREE_GB = 10.0
"""The project's environment, the CPU oracle and a run's records take about 6 GB."""
MIN_MEMORY_BYTES = 6 * 2**30
"""Both servers of the tiny recipe at once, and the gate."""


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    state: State
    found: str
    todo: str = ""
    """What to do about it; empty when there is nothing to do."""
    needed: bool = False
    """`no` means that not even the tiny recipe runs."""


def rows() -> tuple[Row, ...]:
    """Everything, in the order a person would put it right. Starts no server and asks no network."""
    return tuple(row for section in SECTIONS for row in section())


def examine(say: Callable[[str], None] = print) -> int:
    """Print the rows as a table; 69 when something that every run needs is missing, else 0."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    found = rows()
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(3):
        table.add_column("", overflow="fold")
    colours: dict[State, str] = {"yes": "green", "limited": "yellow", "no": "red"}
    for row in found:
        todo = Text(f"\n→ {row.todo}" if row.todo else "")
        table.add_row(row.what, Text(row.state, colours[row.state]), Text(row.found).append_text(todo))
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=PLAIN_WIDTH)
    with console.capture() as printed:
        console.print(table)
    say("\n".join(line.rstrip() for line in printed.get().splitlines()).strip("\n"))
    return UNAVAILABLE if any(row.needed and row.state == "no" for row in found) else PASS


def _python() -> Iterator[Row]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Row("python", "yes", f"{version} at {sys.executable}", needed=True)


def _cores() -> Iterator[Row]:
    cores = len(os.sched_getaffinity(0))
    busy = psutil.cpu_percent(0.3) / 100
    if cores < 2:
        yield Row("cores", "limited", f"{cores}", "use two or more: client and servers share them")
    else:
        yield Row("cores", "yes", f"{cores} usable")
    if busy > BUSY_SHARE:
        yield Row("quiet", "limited", f"{percent(busy)} of the cores busy", "stop other work before a run")
    else:
        yield Row("quiet", "yes", f"{percent(busy)} of the cores busy")


def _memory() -> Iterator[Row]:
    available = psutil.virtual_memory().available
    enough = available >= MIN_MEMORY_BYTES
    todo = "" if enough else f"free some: {gib(MIN_MEMORY_BYTES)} lets both servers of recipe tiny stay up"
    yield Row("memory", "yes" if enough else "limited", f"{gib(available)} available", todo)


def _disk() -> Iterator[Row]:
    free_gb = shutil.disk_usage(recipe.ROOT).free / 1e9
    enough = free_gb >= MIN_FREE_GB
    todo = "" if enough else f"free some: set-up and a run take up to {MIN_FREE_GB:.0f} GB"
    yield Row("disk", "yes" if enough else "limited", f"{free_gb:.1f} GB free in {recipe.ROOT}", todo)


def _gpu() -> Iterator[Row]:
    cards = gpu.gpus()
    if not cards:
        yield Row("gpu", "no", "none that NVML shows", "recipes with gpu = false run; the others need an NVIDIA driver")
        return
    yield Row("driver", "yes", gpu.driver() or "unknown")
    sampled = gpu.sample()
    for card in cards:
        yield Row(f"gpu {card.index}", "yes", f"{card.name}, {gib(card.memory_bytes)}, {card.uuid}")
        mask = sampled.get(f"gpu{card.index}.throttle_mask")
        held = gpu.held_back(int(mask)) if mask is not None else ()
        yield Row(
            f"gpu {card.index} clocks",
            "limited",
            "held back: " + ", ".join(held) if held else "no driver call tells whether they are pinned",
            "let it cool, or check its power" if held else "pin them where you may: nvidia-smi -lgc MHZ,MHZ",
        )


def _compiler() -> Iterator[Row]:
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        yield Row("nvcc", "no", "not found", "only needed to build the engine's kernels: install CUDA 13, or set NVCC")
        return
    printed = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    release = next((line.strip() for line in printed.splitlines() if "release" in line), "unknown version")
    yield Row("nvcc", "yes", f"{nvcc}: {release}")


def _lock() -> Iterator[Row]:
    folder = lock.folder()
    try:
        os.close(lock.take(folder / "doctor.lock"))
    except GateError as error:
        yield Row("lock folder", "no", error.found, error.hint, needed=True)
        return
    yield Row("lock folder", "yes", str(folder))
    keys = [card.uuid for card in gpu.gpus()] or [lock.HOST_KEY]
    for key in keys:
        try:
            os.close(lock.take(folder / f"{key}.lock"))
        except LockHeldError as error:
            yield Row(f"lock of {key}", "limited", error.found, error.hint)


def _oracle() -> Iterator[Row]:
    from oracle import environment, pins, verify

    for platform in pins.PLATFORMS:
        pin, name = pins.load(platform), f"oracle {platform}"
        if platform == "cuda" and not gpu.gpus() and environment.read(platform) is None:
            yield Row(name, "no", "not installed; no GPU to run it on", "nothing, on this machine")
            continue
        try:
            verify.verify_installed(platform)
        except GateError as error:
            yield Row(name, "no", error.found, error.hint.splitlines()[0] if error.hint else "")
        else:
            yield Row(name, "yes", f"{pin.distribution} {pin.version}, {len(pin.lock)} packages as pinned")


def _checkpoints() -> Iterator[Row]:
    for name in recipe.names():
        what = f"recipe {name}"
        try:
            loaded = recipe.load(name)
            row = _checkpoint(what, loaded)
        except GateError as error:
            row = Row(what, "no", error.found, error.hint)
        else:
            if loaded.gpu and not gpu.gpus():
                row = Row(what, "no", f"needs a GPU; {row.found}", "run it on a CUDA host")
        yield row


def _checkpoint(what: str, loaded: recipe.Recipe) -> Row:
    """A local folder is held to its digests, as a run holds it; of the hub's 20 GB only the folder is looked at."""
    wanted = loaded.checkpoint
    if wanted.hub is None:
        for path in filter(None, (wanted.path, wanted.oracle_path)):
            folder = recipe.ROOT / path
            if not folder.is_dir():
                return Row(what, "no", f"no checkpoint at {path}", wanted.make or "")
        shipped, _ = checkpoint.resolve(loaded)
        return Row(what, "yes", f"{wanted.path} is whole, digest {shipped.digest[:12]}")
    folder_or_none = hub.cached(wanted.hub, wanted.revision or "")
    if folder_or_none is None:
        setting = hub.offline()
        todo = f"unset {setting}, or copy the snapshot here" if setting else "the first run downloads it (about 22 GB)"
        return Row(what, "no" if setting else "limited", f"{wanted.hub} is not in the local cache", todo)
    try:
        checkpoint.verify(folder_or_none)
    except CheckpointError as error:
        return Row(what, "limited", error.found, "the next run downloads what is missing")
    return Row(what, "yes", f"{wanted.hub} at {(wanted.revision or '')[:12]} is whole")


def _client() -> Iterator[Row]:
    uvloop = importlib.metadata.version("uvloop")
    yield Row(
        "client", "yes", f"uvloop {uvloop}; every run measures its cost first", "gate calibrate-client shows it now"
    )


SECTIONS: tuple[Callable[[], Iterator[Row]], ...] = (
    _python,
    _cores,
    _memory,
    _disk,
    _gpu,
    _compiler,
    _lock,
    _oracle,
    _checkpoints,
    _client,
)
