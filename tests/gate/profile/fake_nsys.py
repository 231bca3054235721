"""A stand-in for nsys: launch runs the server, start and stop note a window, export writes the kernels of a tiny model.

Synthetic throughout: no time in it was measured. It refuses whatever the real one would not understand.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.gate.profile.tiny import write_sqlite

KNOWN = {
    "launch": {"--session-new", "--trace", "--cuda-graph-trace", "--trace-fork-before-exec"},
    "start": {"--session", "--sample", "--cpuctxsw", "--force-overwrite", "--output"},
    "stop": {"--session"},
    "export": {"--type", "--lazy", "--force-overwrite", "--output"},
    "shutdown": {"--session", "--kill"},
}


def main(argv: list[str]) -> int:
    if argv == ["--version"]:
        print("NVIDIA Nsight Systems version 2025.3.2.474-253236389321v0")
        return 0
    command, *rest = argv
    options = {}
    while rest and rest[0].startswith("--"):
        name, _, value = rest.pop(0).partition("=")
        if name not in KNOWN[command]:
            print(f"unrecognised option '{name}'", file=sys.stderr)
            return 1
        options[name] = value
    state = Path(os.environ.get("FAKE_NSYS_STATE", "/tmp")) / f"{options.get('--session', 'none')}.json"
    if command == "launch":
        if options["--cuda-graph-trace"] != "node":
            return 1
        os.execvp(rest[0], rest)
    if command == "start":
        state.write_text(json.dumps(options))
    elif command == "stop":
        Path(json.loads(state.read_text())["--output"] + ".nsys-rep").touch()
        state.unlink()
    elif command == "export":
        report = Path(rest[0])
        if not report.is_file():
            print(f"{report} does not exist", file=sys.stderr)
            return 1
        tokens = int(report.name.removesuffix(".nsys-rep").rpartition("-")[2])
        write_sqlite(Path(options["--output"]), tokens, slow="candidate" in report.name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
