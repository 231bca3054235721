"""A gate that is killed anywhere is resumed to the run it would have been: same legs, records, tokens, verdict.

`make survival` strikes at every operation of a run and at other times each time; here it is a sample, always the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port

ROOT = Path(__file__).parents[3]
EVERY = bool(os.environ.get("SURVIVAL_EVERY"))
SEED = int(os.environ.get("SURVIVAL_SEED") or (time.time() if EVERY else 1))


def survive(folder: Path, checkpoint: Path, mode: str, *options: str) -> dict[str, Any]:
    """Counts of a harness run without a difference."""
    command = [sys.executable, "-m", "tests.gate.survival.harness", str(folder), str(checkpoint), mode]
    command += ["--port", str(free_port()), "--seed", str(SEED), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, f"SURVIVAL_SEED={SEED}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    counts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return counts


@pytest.mark.slow
def test_killed_before_any_operation_and_again_on_the_way(tmp_path: Path, tiny_checkpoint: Path) -> None:
    stride = 1 if EVERY else 24
    counts = survive(tmp_path, tiny_checkpoint, "operations", "--stride", str(stride))
    assert counts["kills"] >= 2 * counts["operations"] // stride
    assert counts["operations"] > 200


@pytest.mark.slow
def test_killed_at_any_time(tmp_path: Path, tiny_checkpoint: Path) -> None:
    count = 200 if EVERY else 6
    assert survive(tmp_path, tiny_checkpoint, "times", "--count", str(count))["kills"] == count


@pytest.mark.slow
def test_killed_with_servers_of_its_own(tmp_path: Path, tiny_checkpoint: Path) -> None:
    """The watcher ends them, and holds the lock until they are gone."""
    count = 40 if EVERY else 2
    assert survive(tmp_path, tiny_checkpoint, "servers", "--count", str(count))["kills"] == count


@pytest.mark.slow
def test_disk_full_at_any_write(tmp_path: Path, tiny_checkpoint: Path) -> None:
    survive(tmp_path, tiny_checkpoint, "full", "--stride", "1" if EVERY else "83")
