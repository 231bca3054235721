"""A signal in the moment in which a thread is started or waited for."""

from __future__ import annotations

import signal
import threading

import pytest


def at(monkeypatch: pytest.MonkeyPatch, thread: threading.Thread, moment: str) -> list[str]:
    """moment: "start" or "join", which begins with a SIGINT; the list holds it once the moment has ended whole."""
    whole: list[str] = []
    does = getattr(thread, moment)

    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        does()
        whole.append(moment)

    monkeypatch.setattr(thread, moment, interrupted)
    return whole
