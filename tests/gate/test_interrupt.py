"""Signals at the edges of a command: where Python would drop one, before its first step, and after its exit code."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = """
import atexit, signal, sys, time
import typer
from gate import interrupt, shell

app = typer.Typer()

@app.command()
def command() -> None:
    {body}

{before}
sys.argv = ["gate"]
shell.main(app, "gate")
"""
INTERRUPT = "signal.raise_signal({signum})"


def ended(body: str, before: str = "") -> tuple[int, str]:
    """(exit code, standard error) of a command in a process of its own."""
    code = COMMAND.format(body=body, before=before)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stderr.strip()


@pytest.mark.parametrize("signum", ["signal.SIGINT", "signal.SIGTERM", "signal.SIGHUP"])
def test_an_interrupt_that_a_finaliser_would_swallow_comes_again(signum: str) -> None:
    finaliser = f"class Finalised:\n    def __del__(self) -> None:\n        {INTERRUPT.format(signum=signum)}"
    assert ended("Finalised(); time.sleep(30)", finaliser) == (130, "gate: interrupted")


def test_another_exception_of_a_finaliser_is_told_as_ever() -> None:
    finaliser = "class Finalised:\n    def __del__(self) -> None:\n        raise ZeroDivisionError('of a finaliser')"
    code, said = ended("Finalised()", finaliser)
    assert code == 0
    assert said.endswith("ZeroDivisionError: of a finaliser")


@pytest.mark.parametrize("signum", ["signal.SIGINT", "signal.SIGTERM", "signal.SIGHUP"])
def test_what_comes_after_the_exit_code_changes_nothing(signum: str) -> None:
    late = INTERRUPT.format(signum=signum)
    assert ended("raise typer.Exit(3)", f"atexit.register(lambda: {late})") == (3, "")


def test_an_interrupt_before_the_first_step_is_no_traceback() -> None:
    early = "interrupt.install = lambda: signal.raise_signal(signal.SIGINT)"
    assert ended("raise typer.Exit(3)", early) == (130, "")


def test_a_second_interrupt_in_the_last_line_is_no_traceback() -> None:
    impatient = "shell.say = lambda *_: signal.raise_signal(signal.SIGINT)"
    assert ended("raise KeyboardInterrupt", impatient) == (130, "")


def test_an_interrupt_while_it_turns_deaf_changes_nothing() -> None:
    over = "over = interrupt.over\ninterrupt.over = lambda code: (setattr(interrupt, 'over', over), {late})"
    assert ended("raise typer.Exit(3)", over.format(late=INTERRUPT.format(signum="signal.SIGINT"))) == (3, "")


def test_an_interrupt_ends_a_command_that_only_waits_for_its_threads() -> None:
    """Those of a download are told of nothing, and Python would wait until it is whole."""
    impatient = """
import threading

def impatient() -> None:
    while signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.default_int_handler):
        time.sleep(0.001)
    while True:  # one that comes just before it begins to wait is not seen
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.01)

signal.signal(signal.SIGINT, signal.SIG_IGN)
threading.Thread(target=impatient, daemon=True).start()
"""
    download = "threading.Thread(target=time.sleep, args=(50,)).start(); raise KeyboardInterrupt"
    began = time.monotonic()
    assert ended(download, impatient) == (130, "gate: interrupted")
    assert time.monotonic() - began < 40
