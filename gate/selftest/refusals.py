"""0 Cases that never become a number: what the gate refuses before a run, or when it reads one back, in one line."""

from __future__ import annotations

import json
import struct
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gate.arm import Seat, command, url
from gate.errors import GateError
from gate.judge import judge
from gate.observe.rows import TelemetryRow
from gate.observe.rundata import RunData
from gate.observe.store import RunFile, Store, read_run
from gate.plan import plan_hash
from gate.preflight import checkpoint
from gate.recipe import parse
from gate.selftest.good_run import Build
from oracle.pins import load
from oracle.readback import ReadBack
from oracle.serve import deviations
from oracle.verify import compare_running


def launch(case: dict[str, Any], _place: Path) -> str:
    """A vLLM command line against the pin's required and forbidden flags."""
    return "; ".join(deviations(case["platform"], case["argv"]))


def readback(case: dict[str, Any], _place: Path) -> str:
    """What a running vLLM says of itself against the pin."""
    seen = ReadBack("http://127.0.0.1:1", case.get("version"), "m", None, case.get("cache_config", {}))
    found = compare_running(load(case["platform"]), seen, {}).differences
    return "; ".join(f"{d.what} is {d.found}, pinned {d.pinned}" for d in found)


def recipe(case: dict[str, Any], _place: Path) -> str:
    """A recipe's text."""
    return _error(lambda: parse(tomllib.loads(case["text"]), "recipe.toml"))


def arm(case: dict[str, Any], _place: Path) -> str:
    """An arm's command line or URL."""
    seat = Seat("candidate", 8000, "m", None, (), {}, {})
    kind = case["kind"]
    return _error(lambda: url.plan(kind, seat) if kind.startswith("http") else command.plan(kind, seat))


def folder(case: dict[str, Any], place: Path) -> str:
    """A checkpoint folder: `files` as text, `shards` by the tensors in them, under a recipe that pins `digest`."""
    for name, text in case.get("files", {}).items():
        (place / name).write_text(text, encoding="utf-8")
    for name, tensors in case.get("shards", {}).items():
        (place / name).write_bytes(_shard(tensors))
    wanted = {"path": str(place), "digest": case.get("digest")}
    return _error(lambda: checkpoint.resolve(Build.recipe(checkpoint=wanted))).replace(str(place), "CHECKPOINT")


def records(case: dict[str, Any], place: Path) -> str:
    """The good run on disk, `finished` or cut short, one `file` of it damaged, read back and judged."""
    run = _write(Build.run(), place / "run", finished=case.get("finished", True))
    damaged = run / case["file"]
    how = case["how"]
    if how == "remove":
        damaged.unlink()
    elif how == "flip":
        content = damaged.read_bytes()
        middle = len(content) // 2
        damaged.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif how == "copy":
        damaged.write_bytes((run / case["from"]).read_bytes())
    else:
        text = damaged.read_text(encoding="utf-8")
        damaged.write_text(text.replace(case["find"], case["put"], 1), encoding="utf-8")
    return _error(lambda: judge(read_run(run))).replace(str(run), "RUN")


KINDS: dict[str, Callable[[dict[str, Any], Path], str]] = {
    "launch": launch,
    "readback": readback,
    "recipe_text": recipe,
    "arm": arm,
    "folder": folder,
    "records": records,
}
"""The table of a case -> what the gate says of it; empty when it finds nothing wrong."""


def kind(case: dict[str, Any]) -> str | None:
    return next((name for name in KINDS if name in case), None)


def differences(case: dict[str, Any]) -> list[str]:
    """What the gate says otherwise than the case expects; empty when it refuses with the expected words in one line."""
    name = kind(case) or ""
    with tempfile.TemporaryDirectory() as place:
        said = KINDS[name](case[name], Path(place))
    wanted = case["expect"]["refused"]
    found = [f"refused: {said!r} does not say {word!r}" for word in wanted if word not in said]
    if not wanted and said:
        found.append(f"refused: {said!r}, expected nothing")
    if "\n" in said:
        found.append(f"refused in more than one line: {said!r}")
    return found


def _error(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except GateError as error:
        return str(error)
    return ""


def _write(run: RunData, place: Path, *, finished: bool) -> Path:
    plan = run.plan.model_copy(update={"plan_id": plan_hash(run.plan)})
    store = Store(place)
    store.create(plan, RunFile(run_id=run.run_id, host=run.host, started_at=run.started_at, pins=run.pins))
    for leg in run.legs:
        requests = [row for row in run.requests if row.leg_id == leg.leg_id]
        telemetry: list[TelemetryRow] = [row for row in run.telemetry if row.leg_id == leg.leg_id]
        store.append_leg(leg, requests, telemetry)
    store.append_identities(run.identities)
    if finished:
        store.complete(run.finished_at or run.started_at, "PASS", 0)
    return place


def _shard(tensors: list[str]) -> bytes:
    """A safetensors file of one-byte tensors."""
    header = {
        name: {"dtype": "U8", "shape": [1], "data_offsets": [place, place + 1]} for place, name in enumerate(tensors)
    }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(len(tensors))
