"""torch.profiler behind /start_profile and /stop_profile: one Chrome trace a window. ENGINE_PROFILE_DIR turns it on.

Without the switch the routes do not exist. With it nothing is traced until a window is opened. Only device activity is
recorded: that is what a table of kernels needs, and recording operators would slow the host that launches them.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from engine.errors import PreconditionError

SWITCH = "ENGINE_PROFILE_DIR"


class ProfileError(RuntimeError):
    """Started twice, or stopped without a start."""


class WindowProfiler:
    """One window at a time. torch.profiler wants start and stop from one thread, so they have one of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="profile")
        self._open: Any = None
        self._written = 0

    def start(self) -> None:
        """Raises ProfileError where a window is open."""
        self._thread.submit(self._start).result()

    def stop(self) -> Path:
        """The trace's file. Raises ProfileError where no window is open."""
        return self._thread.submit(self._stop).result()

    def _start(self) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        if self._open is not None:
            raise ProfileError("a profile is running; POST /stop_profile ends it")
        has_gpu = torch.cuda.is_available()
        window = profile(activities=[ProfilerActivity.CUDA if has_gpu else ProfilerActivity.CPU], acc_events=True)
        if has_gpu:
            torch.cuda.synchronize()
        window.start()
        self._open = window

    def _stop(self) -> Path:
        import torch

        if self._open is None:
            raise ProfileError("no profile is running; POST /start_profile begins one")
        window, self._open = self._open, None
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # what is still queued belongs to the window
        window.stop()
        self._written += 1
        path = self._folder / f"engine-{os.getpid()}-{self._written}.pt.trace.json"  # not .gz: Python compresses slowly
        partial = path.with_name(f".{path.name.removesuffix('.json')}.partial.json")
        window.export_chrome_trace(str(partial))
        partial.replace(path)  # whole or not there: a reader may be waiting for it
        return path


def profiler() -> WindowProfiler | None:
    """None without the switch. Raises PreconditionError where it names no folder."""
    named = os.environ.get(SWITCH)
    if not named:
        return None
    folder = Path(named)
    if not folder.is_dir():
        raise PreconditionError(f"{SWITCH}={named}: no such folder; make it, or unset the variable")
    return WindowProfiler(folder)
