"""Ctrl-C, SIGTERM and a closed terminal all become one KeyboardInterrupt, which waits while a step must not be cut."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

OTHERS = (signal.SIGTERM, signal.SIGHUP)
AGAIN_S = 0.001


def _as_sigint(_signum: int, _frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


def _again(dropped: sys.UnraisableHookArgs) -> None:
    """Python drops what a finaliser raises, or the callback that each import ends with: an interrupt that came just
    then is sent again a moment later, as often as it takes."""
    if isinstance(dropped.exc_value, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    else:
        sys.__unraisablehook__(dropped)


def install() -> None:
    """SIGTERM and SIGHUP take the way of Ctrl-C; for the main thread of a command.

    A shell starts background jobs with SIGINT ignored, and children inherit that: then nothing could end them politely.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for signum in (*OTHERS, signal.SIGALRM):
        signal.signal(signum, _as_sigint)
    sys.unraisablehook = _again


def over(code: int) -> None:
    """The exit code is known: an interrupt changes it no more, nor puts a traceback among what Python does at its end.

    Python first waits for threads that still work, as those of a download do: until then an interrupt ends it at once.
    Undoes nothing where `install` was not: a command that runs in a process of somebody else's, as in a test.
    """
    if sys.unraisablehook is _again:
        atexit.register(_deaf)
        _all(lambda _signum, _frame: os._exit(code))


def _deaf() -> None:
    _all(signal.SIG_IGN)


def _all(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for signum in (signal.SIGINT, *OTHERS, signal.SIGALRM):
        signal.signal(signum, handler)


@contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """Hold an interrupt back until the block ends; the yielded function tells whether one is waiting.

    For the moments between starting a process and noting it, and for stopping one. Signals are not masked instead,
    since a child would inherit the mask and ignore our SIGINT. Outside the main thread nothing arrives anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    waiting: list[int] = []
    before = signal.signal(signal.SIGINT, lambda signum, _frame: waiting.append(signum))
    try:
        yield lambda: bool(waiting)
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting:
            signal.raise_signal(signal.SIGINT)
