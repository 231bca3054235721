from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gate.client import calibrate
from gate.client.drive import LegRecording, RawResponse
from gate.client.metronome import chunk
from gate.errors import PreconditionError, StorageError


def event(sent_ns: int) -> bytes:
    return b'data: {"sent_ns":"%019d"}\n\n' % sent_ns


def recording(*streams: tuple[tuple[int, bytes], ...], error: str | None = None) -> LegRecording:
    responses = tuple(RawResponse(i, None, 0, 200, chunks, 9, error) for i, chunks in enumerate(streams))
    return LegRecording(0, 9, responses, cpu_s=0.001, loop_lag_p99_ms=None, events=1)


def test_cost_is_cpu_over_events_and_quantiles_of_the_skew() -> None:
    first = ((1_000_100, event(1_000_000)), (2_000_300, event(2_000_000) + b"data: [DONE]\n\n"))
    second = ((1_000_200, event(1_000_000)[:9]), (1_000_500, event(1_000_000)[9:] + event(1_000_100)))
    measured = calibrate.cost(recording(first, second), streams=2, events=2)
    assert measured.cpu_us_per_event == pytest.approx(250.0)
    assert (measured.skew_p50_ms, measured.skew_p90_ms) == (0.0003, 0.0005)
    assert (measured.streams, measured.events) == (2, 4)


@pytest.mark.parametrize("error", [None, "connection closed inside the response"])
def test_missing_events_are_no_measurement(error: str | None) -> None:
    made = recording(((1, event(0)),), error=error)
    with pytest.raises(PreconditionError, match=r"calibration stream 0 brought 1 event .*; expected 2 events"):
        calibrate.cost(made, streams=1, events=2)


@pytest.mark.parametrize(("share", "value"), [(0.0, 10), (0.5, 20), (0.51, 30), (0.9, 40), (1.0, 40)])
def test_quantile_is_a_measured_value(share: float, value: int) -> None:
    assert calibrate.quantile([40, 10, 30, 20], share) == value


def test_chunk_is_sized_in_hex() -> None:
    assert chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"


def test_against_the_metronome() -> None:
    measured = calibrate.calibrate(streams=3, events=5, period_ms=1.0)
    assert (measured.streams, measured.events) == (3, 15)
    assert measured.cpu_us_per_event is not None
    assert measured.cpu_us_per_event > 0
    assert measured.skew_p50_ms is not None
    assert measured.skew_p90_ms is not None
    assert 0 < measured.skew_p50_ms <= measured.skew_p90_ms


def test_server_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(PreconditionError, match="the calibration server ended with code 1"):
        calibrate.calibrate(streams=1, events=1)


def test_an_interrupt_while_the_server_starts_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def interrupted(*args: Any, **named: Any) -> subprocess.Popen[str]:
        started.append(popen(*args, **named))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setattr(calibrate.subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        calibrate.calibrate(streams=1, events=1)
    assert started[0].returncode == -signal.SIGKILL


def test_figures_are_kept_with_what_they_were_measured_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATE_HOST", "box")
    measured = calibrate.calibrate(streams=1, events=3, period_ms=1.0)
    path = calibrate.keep(measured, tmp_path, period_ms=1.0, cpu=None)
    assert path.parent == tmp_path / "box"
    kept = json.loads(path.read_text())
    assert kept["client"] == measured.model_dump()
    assert (kept["period_ms"], kept["pinned_to_cpu"], kept["machine"]["host"]) == (1.0, None, "box")


def test_figures_that_cannot_be_kept_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    measured = calibrate.cost(recording(((9, event(1)),)), streams=1, events=1)
    with pytest.raises(StorageError, match=r"cannot write .*; free space or choose another folder with --out"):
        calibrate.keep(measured, tmp_path / "file", period_ms=1.0, cpu=None)


def test_lines_name_the_goals() -> None:
    measured = calibrate.cost(recording(((9, event(1)),)), streams=1, events=1)
    first, *rest = calibrate.describe(measured).splitlines()
    assert first == "client at 1 stream, 1 event"
    assert [line.split("goal ")[1][:1] for line in rest] == ["≤", "≤"]
