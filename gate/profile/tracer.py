"""4 Opens and closes one window, whichever tool traces it: nsys from outside, or the server's own profiler."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import httpx

from gate.errors import ArmError, StorageError
from gate.observe import control
from gate.profile import chrome, commands, nsys, tools
from gate.profile.activity import Trace

STOP_TIMEOUT_S = 180.0
"""Both servers write their trace before they answer: some seconds for the 150 MB of 136 steps of 1,200 kernels."""
FILE_WAIT_S = 10.0
"""For a server that answers first."""


POLL_S = 0.2
NO_TRACE = "its log says why: vLLM answers 200 too when it failed to start or stop its profiler"


class Tracer(Protocol):
    def window(self, name: str, work: Callable[[], None]) -> Trace:
        """Trace what `work` makes the server do."""

    def close(self) -> None:
        """Called before the server is stopped."""


class NsysTracer:
    """A session of nsys around a server that it launched."""

    def __init__(self, nsys: str, session: str, folder: Path) -> None:
        self._nsys, self._session, self._folder = nsys, session, folder

    def window(self, name: str, work: Callable[[], None]) -> Trace:
        """Raises ArmError where nsys fails, StorageError where its export cannot be read."""
        report = self._folder / name
        tools.call(commands.start(self._nsys, self._session, report))
        try:
            work()
        finally:
            tools.call(commands.stop(self._nsys, self._session))
        tools.call(commands.export(self._nsys, report))
        return nsys.read(Path(f"{report}.sqlite"))

    def close(self) -> None:
        """A session that is gone already is no fault: the server may have died in it."""
        try:
            tools.call(commands.shutdown(self._nsys, self._session))
        except ArmError:
            return


class RouteTracer:
    """/start_profile and /stop_profile of the server itself, and the file that appears in its folder."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder

    def window(self, name: str, work: Callable[[], None]) -> Trace:
        """A window that `work` did not finish is not closed: its server ends next, and its trace is of no use.

        Raises ArmError where the routes fail or no file appears, StorageError where what appears stays unreadable.
        """
        before = set(self._folder.iterdir())
        self._post(commands.START_ROUTE)
        work()
        self._post(commands.STOP_ROUTE)
        deadline = time.monotonic() + FILE_WAIT_S
        while True:
            late = time.monotonic() > deadline
            written = sorted(p for p in set(self._folder.iterdir()) - before if _is_trace(p))
            try:
                traces = [chrome.read(path) for path in written]
            except StorageError:
                if late:
                    raise
                time.sleep(POLL_S)  # it may be half written
                continue
            with_kernels = [trace for trace in traces if trace.kernels]
            if len(with_kernels) == 1:
                return with_kernels[0]
            if len(with_kernels) > 1:
                raise ArmError(f"{len(with_kernels)} processes of the server used the GPU in {name}", expected="one")
            if traces:
                return traces[0]  # without device work: a finding, where a missing file is an error
            if late:
                raise ArmError(f"the server wrote no trace of {name}", hint=NO_TRACE)
            time.sleep(POLL_S)

    def close(self) -> None:
        """The profiler ends with its server."""

    def _post(self, route: str) -> None:
        try:
            with control.client(self._url, STOP_TIMEOUT_S) as client:
                status = client.post(route).status_code
        except httpx.HTTPError as error:
            raise ArmError(
                f"{self._url}{route}: {error or type(error).__name__}",
                expected=f"an answer within {STOP_TIMEOUT_S:g} s",
                hint="look into its log",
            ) from error
        if status != 200:
            missing = status in (404, 405)
            raise ArmError(
                f"{self._url}{route} answered {status}",
                expected="200",
                hint="the server has no profiler: --backend nsys needs none" if missing else "look into its log",
            )


def _is_trace(path: Path) -> bool:
    """The engine writes beside the file, under a name with a dot, and renames; vLLM's tables of times are text."""
    return ".json" in path.name and not path.name.startswith(".")
