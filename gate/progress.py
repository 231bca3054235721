"""What a user sees while a run goes: a bar with ETA on a terminal, one plain line an event anywhere else.

Nothing is drawn while a leg is timed: a bar that repaints itself takes the interpreter from the client's loop.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from gate import messages
from gate.observe.rows import Finding
from gate.units import duration


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Nobody reads the progress any more: go on without. rich would end the run with exit code 1, our FAIL."""
        self.quiet = True


class Ui:
    """Events go to standard error, so that standard output is the table and nothing else."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._left = 0
        self._took_s: list[float] = []

    def say(self, text: str) -> None:
        (self._bar.console if self._bar else self.console).print(
            "".join(c if c.isprintable() else " " for c in text), markup=False
        )

    def begun(self, run_id: str, findings: Iterable[Finding]) -> None:
        """What every command that measures says as soon as it has a folder."""
        self.each(messages.begun(run_id, findings))

    def each(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.say(line)

    def legs(self, done: int, of: int) -> Self:
        """`with ui.legs(done, of):` around the measurement."""
        self._left, self._took_s = of - done, []
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
                console=self.console,
                transient=True,
                auto_refresh=False,
            )
            self._task = self._bar.add_task("legs", total=of, completed=done, left="")
        return self

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    def leg(self, text: str) -> None:
        """A leg begins."""
        if self._bar:
            self._bar.update(self._task, description=text, refresh=True)
        else:
            self.say(text)

    def leg_done(self, took_s: float) -> None:
        """A leg ended, its server's start not counted: what is left of the legs."""
        self._left -= 1
        self._took_s.append(took_s)
        left = f"about {duration(statistics.median(self._took_s) * self._left)} left" if self._left else ""
        if self._bar:
            self._bar.update(self._task, advance=1, left=left, refresh=True)
            return
        self.say(f"  took {duration(took_s)}" + (f", {left}" if left else ""))
