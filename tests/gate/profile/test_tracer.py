"""A window through a server's own routes: what may be late, half written, empty, missing, or never answered."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from gate.errors import ArmError, StorageError
from gate.profile import tracer
from gate.profile.capture import scratch
from gate.profile.tracer import RouteTracer

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.0, "dur": 2.0}
WHOLE = json.dumps({"traceEvents": [KERNEL]})
EMPTY = json.dumps({"traceEvents": []})


class Server(ThreadingHTTPServer):
    """Answers what `status` says, after `stop` did what the test wants of /stop_profile."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[str] = []
        self.status = 200
        self.stop: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.seen.append(self.path)
        if self.path == "/stop_profile":
            self.server.stop()
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(tracer, "FILE_WAIT_S", 1.0)
    monkeypatch.setattr(tracer, "POLL_S", 0.02)
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def nothing() -> None: ...


def test_a_trace_that_is_there_with_the_answer(server: Server, tmp_path: Path) -> None:
    (tmp_path / "before.json").write_text(WHOLE)
    server.stop = lambda: (tmp_path / "rank0.1.pt.trace.json").write_text(WHOLE) and None
    trace = RouteTracer(server.url, tmp_path).window("w", nothing)
    assert [(k.name, k.launches, k.us) for k in trace.kernels] == [("k", 1, 2.0)]
    assert server.seen == ["/start_profile", "/stop_profile"]


def test_what_is_no_trace_is_left_alone(server: Server, tmp_path: Path) -> None:
    """The engine's file before it is whole, vLLM's table of times, and the trace of a process without a GPU."""

    def stop() -> None:
        (tmp_path / ".engine-1-1.pt.trace.partial.json").write_text("{")
        (tmp_path / "profiler_out_0.txt").write_text("Name  Self CPU")
        (tmp_path / "frontend.json").write_text(EMPTY)
        (tmp_path / "rank0.json").write_text(WHOLE)

    server.stop = stop
    assert len(RouteTracer(server.url, tmp_path).window("w", nothing).kernels) == 1


def test_a_trace_that_is_written_after_the_answer(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it behind the first look, the rest behind the second."""
    parts = iter([WHOLE[:20], WHOLE])
    late = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: (tmp_path / "t.json").write_text(next(parts)))
    monkeypatch.setattr(tracer, "time", late)
    assert len(RouteTracer(server.url, tmp_path).window("w", nothing).kernels) == 1
    assert next(parts, None) is None


def test_an_empty_trace_is_a_finding_and_no_error(server: Server, tmp_path: Path) -> None:
    server.stop = lambda: (tmp_path / "t.json").write_text(EMPTY) and None
    trace = RouteTracer(server.url, tmp_path).window("w", nothing)
    assert (trace.level, trace.kernels, trace.busy_us) == ("none", (), None)


def test_a_trace_that_stays_half_written(server: Server, tmp_path: Path) -> None:
    server.stop = lambda: (tmp_path / "t.json").write_text(WHOLE[:20]) and None
    with pytest.raises(StorageError, match=r"t\.json cannot be read as a trace"):
        RouteTracer(server.url, tmp_path).window("w", nothing)


def test_no_trace_at_all(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ArmError, match="wrote no trace of w; its log says why"):
        RouteTracer(server.url, tmp_path).window("w", nothing)


def test_two_processes_with_a_gpu(server: Server, tmp_path: Path) -> None:
    def stop() -> None:
        for rank in (0, 1):
            (tmp_path / f"rank{rank}.json").write_text(WHOLE)

    server.stop = stop
    with pytest.raises(ArmError, match="2 processes of the server used the GPU in w; expected one"):
        RouteTracer(server.url, tmp_path).window("w", nothing)


def test_a_server_that_never_finishes_its_trace(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = threading.Event()
    server.stop = lambda: done.wait(10) and None
    with pytest.raises(ArmError, match=r"/stop_profile: .*expected an answer within 0\.2 s; look into its log"):
        RouteTracer(server.url, tmp_path).window("w", lambda: monkeypatch.setattr(tracer, "STOP_TIMEOUT_S", 0.2))
    done.set()


@pytest.mark.parametrize(("status", "words"), [(404, "--backend nsys needs none"), (500, "look into its log")])
def test_a_route_that_refuses(server: Server, tmp_path: Path, status: int, words: str) -> None:
    server.status = status
    with pytest.raises(ArmError, match=f"/start_profile answered {status}; expected 200; .*{words}"):
        RouteTracer(server.url, tmp_path).window("w", nothing)


@pytest.mark.parametrize("cause", [KeyboardInterrupt, ArmError("it died")])
def test_a_window_that_is_cut_short_waits_for_no_trace(
    server: Server, tmp_path: Path, cause: BaseException | type[BaseException]
) -> None:
    def work() -> None:
        raise cause

    with pytest.raises((KeyboardInterrupt, ArmError)):
        RouteTracer(server.url, tmp_path).window("w", work)
    assert server.seen == ["/start_profile"]


def test_a_scratch_folder_goes_unless_something_in_it_could_not_be_read(tmp_path: Path) -> None:
    with scratch("oracle-measured", None) as made:
        (made / "t.json").touch()
        assert made.is_absolute()
        assert "oracle-measured" in made.name
    assert not made.exists()
    with pytest.raises(KeyboardInterrupt), scratch("x", None) as made:
        raise KeyboardInterrupt
    assert not made.exists()
    with pytest.raises(StorageError), scratch("x", None) as made:
        raise StorageError(f"{made}/t.json cannot be read")
    assert made.exists()
    made.rmdir()
    with scratch("x", tmp_path / "traces" / "x") as made:
        assert made == tmp_path / "traces" / "x"
    assert made.is_dir()
