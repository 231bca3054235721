"""An interrupt wherever an event loop begins or ends: a KeyboardInterrupt, and not a word beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STRUCK = """
import asyncio, signal, sys
from gate.client import eventloop

signal.signal(signal.SIGINT, signal.default_int_handler)

async def main() -> None:
    await asyncio.sleep(0)

def tracer(frame, event, _argument):
    if frame.f_code.co_name == sys.argv[2] and frame.f_code.co_filename.endswith(sys.argv[1]):
        sys.settrace(None)
        signal.raise_signal(signal.SIGINT)

sys.settrace(tracer)
try:
    eventloop.run(main)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("selector_events.py", "_make_self_pipe"),  # half of a loop is there
        ("runners.py", "run"),  # the coroutine is there and no task for it
        ("selector_events.py", "_close_self_pipe"),  # half of it is gone
    ],
)
def test_an_interrupt_finds_a_whole_loop_or_none(file: str, function: str) -> None:
    command = [sys.executable, "-W", "default", "-c", STRUCK, file, function]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")
