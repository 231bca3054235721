"""0 Runs a command line: whatever the user can act on is one line on standard error and its exit code.

No way out but a judged run's may end with 0 to 3: those are verdicts.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import typer

from gate import interrupt
from gate.errors import INTERNAL, INTERRUPTED, UNAVAILABLE, USAGE, GateError

CommandLineError: Any = typer.BadParameter.__mro__[2]
"""Base of every mistake the argument parser reports; typer does not name it."""


def main(app: typer.Typer, name: str) -> NoReturn:
    """All of a command that signals may end, from its first step to the end of the process."""
    code = INTERRUPTED
    try:
        try:
            open_streams()
            interrupt.install()
            code = run(app, name)
        finally:
            interrupt.over(code)
    except KeyboardInterrupt:  # before there was anything to end, in the last line, or in the way of the line above
        interrupt.over(code)
    sys.exit(code)


def open_streams() -> None:
    """Standard output or error that the caller has closed, `gate doctor >&-`: what is said goes nowhere, and no file
    that a command opens takes their number.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  (for as long as the process)


def run(app: typer.Typer, name: str) -> int:
    """The exit code of the command that standard argv names."""
    try:
        code = app(standalone_mode=False)
        if sys.stdout is not None:  # `gate list >&-`
            sys.stdout.flush()
    except GateError as error:
        if _while_interrupted(error):
            return _interrupted(name, error)
        return say(name, str(error), error.exit_code)
    except CommandLineError as error:
        text = error.format_message()
        if text.startswith("Usage:"):  # the help itself, for a command that wants another word
            typer.echo(text, err=True)
            return USAGE
        text = " ".join((_not_a_number(error) or text).split())
        return say(name, text, USAGE) if text else USAGE
    except (KeyboardInterrupt, typer.Abort):
        return say(name, "interrupted", INTERRUPTED)
    except SystemExit as end:
        # The parser ends with 1, our FAIL, when the reader of a pipe has gone.
        return reader_gone() if _is_broken_pipe(end.__context__) else int(end.code or 0)
    except OSError as error:
        if _is_broken_pipe(error):
            return reader_gone()
        if _while_interrupted(error):
            return _interrupted(name, error)
        where = error.filename or "standard output"
        quiet()
        return say(name, f"cannot use {where}: {error.strerror}", UNAVAILABLE)
    except Exception as error:  # noqa: BLE001  Python would end with 1, our FAIL
        if _while_interrupted(error):
            return _interrupted(name, error)
        traceback.print_exc()
        return say(name, f"internal error, please report it: {type(error).__name__}: {error}", INTERNAL)
    # The parser itself may turn Ctrl-C into a code; it must not end without a word.
    return say(name, "interrupted", INTERRUPTED) if code == INTERRUPTED else int(code or 0)


def _not_a_number(error: Any) -> str | None:
    """A value that is no number, or out of range, in the words of a UsageError; None for any other mistake.

    The parser itself says what a library did with it, and not what was typed.
    """
    option = "/".join(getattr(getattr(error, "param", None), "opts", ()))
    told = getattr(error.__cause__, "errors", None)
    first = told()[0] if option and callable(told) else {}
    bound = first.get("ctx", {})
    expected = {
        "int_parsing": "a whole number",
        "float_parsing": "a number",
        "greater_than_equal": f"{bound.get('ge')} or more",
        "less_than_equal": f"{bound.get('le')} or less",
    }.get(first.get("type", ""))
    typed = first.get("input")
    return None if expected is None else f"{option} {typed if bound else repr(typed)}; expected {expected}"


def say(name: str, text: str, code: int) -> int:
    """On standard error; a line break is kept for the oracle's table."""
    typer.echo(f"{name}: {shown(text)}", err=True)
    return code


def tell(text: str) -> None:
    """An answer in words that may be a file's or a server's."""
    table(f"{shown(text)}\n")


def table(text: str) -> None:
    """What an exit code of its own follows: `gate report | head -3` keeps it though the reader of the pipe has gone."""
    if sys.stdout is None:  # `gate report >&-`
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        quiet()


def shown(text: str) -> str:
    """Files' and servers' words may hold escape codes: a line break is kept, nothing else that does not print."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def reader_gone() -> int:
    """The reader has seen enough: `gate list | head`."""
    quiet()
    return 0


def quiet() -> None:
    """Standard output to nowhere, so that Python's own flush at the end cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_broken_pipe(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def _while_interrupted(error: BaseException) -> bool:
    """Whether a Ctrl-C was on its way out when this was raised."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen is not None


def _interrupted(name: str, error: Exception) -> int:
    """What failed on the way out is told, but it is not why the command ended."""
    return say(name, f"interrupted; while it ended: {type(error).__name__}: {error}", INTERRUPTED)
