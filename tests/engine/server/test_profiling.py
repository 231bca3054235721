"""/start_profile and /stop_profile: not there unless asked for; a trace on disk, and 409 out of turn."""

from __future__ import annotations

from pathlib import Path

from engine.profile import SWITCH
from tests.engine.server import fakes


def test_not_there_without_the_switch(start):
    live = start(fakes.FakeEngine())
    assert live.post("/start_profile").status_code == 404


def test_a_window_over_http(start, monkeypatch, tmp_path: Path):
    monkeypatch.setenv(SWITCH, str(tmp_path))
    live = start(fakes.FakeEngine())
    early = live.post("/stop_profile")
    assert early.status_code == 409
    assert "no profile is running" in early.json()["error"]["message"]
    assert live.post("/start_profile").json() == {"profiling": True}
    assert live.post("/start_profile").status_code == 409
    trace = Path(live.post("/stop_profile").json()["trace"])
    assert trace.parent == tmp_path
    assert trace.is_file()
