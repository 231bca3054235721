"""4 Opens and closes one window, whichever tool traces it: nsys from outside, or the server's own profiler."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import httpx

from gate.errors import ArmError
from gate.observe import control
from gate.profile import chrome, commands, nsys, tools
from gate.profile.activity import Trace

STOP_TIMEOUT_S = 600.0
"""vLLM writes its trace before it answers; some hundred MB take minutes."""
FILE_WAIT_S = 30.0


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
        """Raises ArmError where the routes fail or write no device work."""
        before = set(self._folder.iterdir())
        self._post(commands.START_ROUTE)
        try:
            work()
        finally:
            self._post(commands.STOP_ROUTE)
        deadline = time.monotonic() + FILE_WAIT_S
        while True:
            written = sorted(p for p in set(self._folder.iterdir()) - before if ".json" in p.name)
            traces = [trace for trace in map(chrome.read, written) if trace.kernels]
            if len(traces) == 1:
                return traces[0]
            if len(traces) > 1:
                raise ArmError(f"{len(traces)} processes of the server used the GPU in {name}", expected="one")
            if written or time.monotonic() > deadline:
                return _empty(name, written)
            time.sleep(0.2)

    def close(self) -> None:
        """The profiler ends with its server."""

    def _post(self, route: str) -> None:
        try:
            with control.client(self._url, STOP_TIMEOUT_S) as client:
                status = client.post(route).status_code
        except httpx.HTTPError as error:
            raise ArmError(f"{self._url}{route}: {error or type(error).__name__}") from error
        if status != 200:
            raise ArmError(
                f"{self._url}{route} answered {status}",
                expected="200",
                hint="the server has no profiler: --backend nsys needs none",
            )


def _empty(name: str, written: list[Path]) -> Trace:
    """A trace without device work is a finding, a missing file is an error."""
    if not written:
        raise ArmError(f"the server wrote no trace of {name}", hint="look into its log")
    return chrome.read(written[0])
