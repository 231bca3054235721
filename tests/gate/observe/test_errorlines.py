"""Error lines of a server's log: of the leg alone, and only what is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from gate.observe import errorlines


def test_only_what_was_written_since_counts(tmp_path: Path) -> None:
    log = tmp_path / "oracle.log"
    log.write_text("ERROR of the start\n")
    start = errorlines.position(log)
    with log.open("a") as file:
        file.write("INFO all well\nERROR 11-29 22:00:00 [core.py:1] EngineCore died\n")
    assert errorlines.since(log, start) == ["ERROR 11-29 22:00:00 [core.py:1] EngineCore died"]


@pytest.mark.parametrize(
    ("line", "is_error"),
    [
        ("(EngineCore pid=7) ERROR 11-29 [core.py:1] died", True),
        ("ERROR:    Exception in ASGI application", True),
        ("CRITICAL: giving up", True),
        ("FATAL flaw", True),
        ("Traceback (most recent call last):", True),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", True),
        ("torch.OutOfMemoryError: CUDA out of memory", True),
        ("Segmentation fault", True),
        ("Aborted (core dumped)", True),
        ("INFO config: log_errors=True, error_budget=3", False),
        ("INFO: 127.0.0.1 - POST /v1/completions 200 OK", False),
        ("WARNING 0 errors so far", False),
    ],
)
def test_what_is_an_error(tmp_path: Path, line: str, is_error: bool) -> None:
    log = tmp_path / "log"
    log.write_text(line + "\n")
    assert bool(errorlines.since(log, 0)) == is_error


def test_a_log_that_was_rotated_is_read_whole_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert (errorlines.position(log), errorlines.since(log, 5)) == (0, [])
    log.write_text("ERROR x\n")
    assert errorlines.since(log, 5000) == ["ERROR x"]


def test_a_long_line_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("ERROR " + "x" * 10_000)
    assert [len(line) for line in errorlines.since(log, 0)] == [errorlines.LINE_CHARS]
