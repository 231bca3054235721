"""The watcher's end of a gate that ends by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gate.arm.guard import marked
from tests.gate.arm.test_process import alive

ROOT = Path(__file__).parents[3]
INTERRUPTED = """
import subprocess, sys
from gate.arm.guard import MARK, Guard

guard = Guard()
guard.announce("{mark}")
server = subprocess.Popen(["sleep", "60"], env={{MARK: "{mark}"}}, start_new_session=True)
guard.watch("{mark}", server.pid)
print(guard._process.pid, server.pid)
sys.exit(130)  # an interrupt has cut off what would have stopped it
"""


def test_a_gate_that_was_cut_off_before_it_stopped_its_servers_does_not_end_before_them(tmp_path: Path) -> None:
    mark = tmp_path.name
    code = INTERRUPTED.format(mark=mark)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    left = [pid for pid in map(int, done.stdout.split()) if alive(pid)], marked(mark)
    assert (done.returncode, done.stderr) == (130, "")
    assert left == ([], [])
