"""compute-sanitizer over the kernels' tests on a CUDA host: memcheck, and racecheck of what lies in shared memory.

    python tools/sanitize.py [--tool memcheck,racecheck] [--jobs 4] [--limit 600] [--list FILE] [--out FILE]

The tests are those of tests/ops/sanitized.txt, one process for each file and tool. Kernels of ours alone are looked at
(their names have `engine`), since racecheck names hazards in cuBLAS's own. They are a build of their own beside the
shipped one, in which every lane gives a stage back: of a warp's one arrival behind __syncwarp racecheck makes hazards
that are none (engine/kernels/stage.cuh). No server can load it: only the processes that run tests here choose it.

Before anything else each tool must find the faults that tests/ops/planted.cu has for it, and be silent about its sound
ring, through the same filter: one that is blind or cries wolf there says nothing of the rest. A line for each, on the
terminal and in --out; the last one names the functions of ours that none of the tests called. Exit code: 0 all clean;
1 a fault, a failed test or a limit that was reached; 2 a control that failed, or it cannot be run.

It shares the GPU with whatever runs there and slows it down: never beside a measurement.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST, SOURCE = ROOT / "tests" / "ops" / "sanitized.txt", ROOT / "tests" / "ops" / "planted.cu"
sys.path.insert(0, str(ROOT))
TOOLS = ("memcheck", "racecheck")
FILTER = ("--kernel-name", "kns=engine")
FAULT = 9
"""What compute-sanitizer ends with where it found something; a program of its own never does."""
TIMED_OUT = 124
CALLED = "functions called: "
"""Before the names that a process of tests ends with."""


class CannotRun(Exception):
    """One line: found, expected, what to do."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A kernel of planted.cu, by its name there, and whether the tool must have something to say of it."""

    tool: str
    name: str
    fault: bool


CONTROLS = (
    Planted("memcheck", "overrun", True),
    Planted("racecheck", "race", True),
    Planted("racecheck", "early ring", True),
    Planted("racecheck", "sound ring", False),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    tool: str
    what: str
    code: int
    tests: str
    """pytest's last line, without its bars; "" where it did not come to it."""
    found: str
    """The tool's summary; "" where it did not come to it."""
    called: frozenset[str] = frozenset()
    """Functions of the kernels' library that the tests launched, as the process said at its end."""

    @property
    def clean(self) -> bool:
        """Both came to their end and neither has anything to say."""
        return self.code == 0 and "passed" in self.tests and re.search(r": 0 (errors|hazards)", self.found) is not None

    def __str__(self) -> str:
        ended = "cut by its limit" if self.code == TIMED_OUT else f"exit {self.code}"
        said = "; ".join(part for part in (self.tests, self.found) if part) or "nothing said"
        return f"{'clean' if self.clean else 'NOT CLEAN':9}  {self.tool:9}  {self.what:22}  {ended}: {said}"


def program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")
    if found is None:
        raise CannotRun(f"found no {name} on PATH or in /usr/local/cuda/bin; expected a CUDA toolkit; install one")
    return found


def tests_of(path: Path) -> dict[str, list[str]]:
    """File -> the ids in it, in order. Raises CannotRun for a list without any."""
    files: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            files[line.split("::")[0]].append(line.strip())
    if not files:
        raise CannotRun(f"{path}: found no test; expected lines such as tests/ops/test_norm_cuda.py::test_pairs[8-8-1]")
    return dict(files)


def watched(tool: str, command: Sequence[str], what: str, limit_s: float) -> Outcome:
    """`command` under `tool`."""
    whole = [program("compute-sanitizer"), "--tool", tool, *FILTER, "--error-exitcode", str(FAULT), *command]
    # A group of its own: at its limit what the tool has started ends with it.
    pipe = subprocess.PIPE
    with subprocess.Popen(whole, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            said = "".join(process.communicate(timeout=limit_s))
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, code = process.communicate()[0], TIMED_OUT
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    counted = re.findall(r"^=* *(\d+ (?:passed|failed|skipped|error).*?) *=*$", said, flags=re.MULTILINE)
    summaries = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", said)
    called = frozenset(" ".join(re.findall(rf"^{CALLED}(.*)$", said, flags=re.MULTILINE)).split())
    return Outcome(tool, what, code, counted[-1] if counted else "", summaries[-1] if summaries else "", called)


def control(planted: Planted, library: Path) -> str:
    """What came out, as a line. Raises CannotRun where the tool sees less, or more, than is there."""
    command = [sys.executable, __file__, "--planted", str(library), planted.name]
    outcome = watched(planted.tool, command, planted.name, 120)
    found = (
        f"{planted.tool}: found {outcome.found or 'no summary'}, exit {outcome.code}, for the planted {planted.name}"
    )
    if planted.fault:
        if outcome.code != FAULT or re.search(r": [1-9]\d* (error|hazard)", outcome.found) is None:
            raise CannotRun(
                f"{found}; expected it to be seen; this compute-sanitizer, or its filter, says nothing on this host"
            )
    elif outcome.code or re.search(r": 0 (error|hazard)", outcome.found) is None:
        raise CannotRun(f"{found}; expected nothing to be seen; this compute-sanitizer reports rings that are sound")
    return f"{'seen' if planted.fault else 'silent':9}  {planted.tool:9}  the planted {planted.name}"


def build_planted(folder: Path) -> Path:
    """Raises CannotRun with the compiler's last line."""
    from engine.kernels.build import FOR_SANITIZERS

    library = folder / "planted.so"
    flags = ["-std=c++17", "-arch=native", "-shared", "-Xcompiler", "-fPIC", *FOR_SANITIZERS.flags]
    done = subprocess.run(
        [program("nvcc"), *flags, "-o", str(library), str(SOURCE)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CannotRun(f"nvcc: {(done.stderr.strip() or 'no message').splitlines()[-1]}; expected {SOURCE} to compile")
    return library


def build_kernels() -> str:
    """The name of the library that the tests will load, built where it is not there. Raises CannotRun."""
    import torch

    from engine.kernels.build import FOR_SANITIZERS, BuildError, build
    from engine.kernels.library import arch_of

    try:
        return build(arch_of(torch.device("cuda")), FOR_SANITIZERS).path.name
    except BuildError as error:
        raise CannotRun(str(error)) from error


def need_device() -> None:
    """Before anything is compiled for it. Raises CannotRun."""
    import torch

    if not torch.cuda.is_available():
        raise CannotRun("found no CUDA device that torch can use; expected one; run it on a host with a GPU")


def run_tests(ids: Sequence[str]) -> int:
    """In this process, over the kernels for sanitizers."""
    import pytest

    from engine.kernels import library
    from engine.kernels.build import FOR_SANITIZERS

    library.choose(FOR_SANITIZERS)
    code = int(pytest.main(["-q", "-m", "gpu", "-p", "no:cacheprovider", *ids]))
    print(f"\n{CALLED}{' '.join(library.called())}")
    return code


def uncalled(outcomes: Sequence[Outcome]) -> str:
    """A line. On a GPU other than Hopper some must be in it: engine/kernels/wgmma.cuh is built for sm_90a alone."""
    from engine.kernels.build import exported, sources

    offered = {name.removeprefix("engine_") for source in sources() for name in exported(source)}
    missing = sorted(offered.difference(*(outcome.called for outcome in outcomes)))
    return f"not called by any test: {', '.join(missing)}" if missing else f"all {len(offered)} functions were called"


def launch(library: str, name: str) -> int:
    """1 where a kernel without a fault did not run: silence says nothing then. One with a fault may end in an error."""
    error = ctypes.CDLL(library).engine_planted(name.encode())
    return int(error != 0 and not any(planted.fault for planted in CONTROLS if planted.name == name))


def run(arguments: argparse.Namespace) -> int:
    tools = arguments.tool.split(",")
    if unknown := [tool for tool in tools if tool not in TOOLS]:
        raise CannotRun(f"--tool {unknown[0]}: found no such tool; expected {' or '.join(TOOLS)}")
    files, controls = tests_of(arguments.list), []
    need_device()
    with tempfile.TemporaryDirectory() as folder:
        library = build_planted(Path(folder))
        for planted in CONTROLS:
            if planted.tool in tools:
                controls.append(control(planted, library))
                print(controls[-1], flush=True)
    kernels = build_kernels()

    def one(job: tuple[str, str]) -> Outcome:
        tool, file = job
        command = [sys.executable, __file__, "--tests", *files[file]]
        outcome = watched(tool, command, Path(file).stem, arguments.limit)
        print(outcome, flush=True)
        return outcome

    with ThreadPoolExecutor(arguments.jobs) as pool:
        outcomes = list(pool.map(one, [(tool, file) for tool in tools for file in files]))
    last = uncalled(outcomes)
    print(last, flush=True)
    if arguments.out is not None:
        commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
        head = f"tools/sanitize.py at {commit.stdout.strip() or 'no commit'}: {sum(map(len, files.values()))} tests"
        lines = [f"{head}; {kernels}", *controls, *map(str, outcomes), last]
        arguments.out.write_text("\n".join(lines) + "\n")
    return 0 if all(outcome.clean for outcome in outcomes) else 1


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools/sanitize.py", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--tool", default=",".join(TOOLS), help="memcheck, racecheck or both (default)")
    parser.add_argument("--jobs", type=int, default=4, help="processes at a time (default 4)")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for a file under a tool (default 600)")
    parser.add_argument("--list", type=Path, default=LIST, help="ids of tests (default tests/ops/sanitized.txt)")
    parser.add_argument("--out", type=Path, help="write the lines here too")
    parser.add_argument("--planted", nargs=2, metavar=("LIBRARY", "NAME"), help=argparse.SUPPRESS)
    parser.add_argument("--tests", nargs="+", metavar="ID", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.planted is not None:
        return launch(*arguments.planted)
    if arguments.tests is not None:
        return run_tests(arguments.tests)
    try:
        return run(arguments)
    except (CannotRun, OSError) as error:
        print(f"sanitize: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
