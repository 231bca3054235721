"""tools/sanitize.py with stand-ins for nvcc and compute-sanitizer: what is clean, what is not, whom not to believe."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import sanitize
import torch

from engine.kernels import build, library

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = {
    "memcheck": "ERROR SUMMARY: {n} errors",
    "racecheck": "RACECHECK SUMMARY: {n} hazards displayed ({n} errors)",
}

HONEST = "n = int(args[-1] != 'sound ring')"
NVCC = """
with open('{log}', 'a') as log:
    log.write(' '.join(args) + '\\n')
if '--version' in args:
    print('release 13.0, V13.0.88')
else:
    open(args[args.index('-o') + 1], 'w').close()
"""


def script(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys, time\nargs = sys.argv[1:]\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def host(tmp_path, monkeypatch):
    """(what makes compute-sanitizer's answers, a list of two files' tests). In tmp_path/nvcc: what nvcc was asked."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    monkeypatch.setenv("PATH", f"{bin_}:/usr/bin:/bin")
    script(bin_, "nvcc", NVCC.format(log=tmp_path / "nvcc"))
    kernel = tmp_path / "engine" / "ops" / "op" / "kernel.cu"
    kernel.parent.mkdir(parents=True)
    kernel.write_text('extern "C" int engine_op(void* stream) { return 0; }')
    monkeypatch.setattr(build, "ENGINE", tmp_path / "engine")
    monkeypatch.setattr(build, "BUILD", tmp_path / "build")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(library, "arch_of", lambda _: "90a")
    listed = tmp_path / "list.txt"
    listed.write_text("# what is run\ntests/a.py::test_a[1]\ntests/b.py::test_b\n\ntests/a.py::test_a[2]\n")

    def answers(planted=HONEST, tests="n = 0", called="functions called: op"):
        summary = f"{SUMMARY!r}[args[args.index('--tool') + 1]]"
        script(
            bin_,
            "compute-sanitizer",
            f"assert args[2:6] == ['--kernel-name', 'kns=engine', '--error-exitcode', '9'], args\n"
            f"passed = '2 passed, 1 warning in 3.20s'\n"
            f"if '--planted' in args:\n    {planted}\n"
            f"else:\n    assert args[7].endswith('sanitize.py') and args[8] == '--tests', args\n    {tests}\n"
            f"    print('=' * 8, passed, '=' * 8)\n    print({called!r})\n"
            f"print('=========', {summary}.format(n=n))\nsys.exit(9 if n else 0)",
        )

    return answers, listed


def call(listed, *more):
    return sanitize.main(["--list", str(listed), "--jobs", "1", *more])


def test_all_clean(host, tmp_path, capsys):
    answers, listed = host
    answers()
    assert call(listed, "--out", str(tmp_path / "out.txt")) == 0
    head, *lines = (tmp_path / "out.txt").read_text().splitlines()
    assert "3 tests; engine-sm_90a-for-sanitizers-" in head
    controls, lines, last = lines[:4], lines[4:-1], lines[-1]
    assert last == "all 1 functions were called"
    assert [" ".join(line.split()) for line in controls] == [
        "seen memcheck the planted overrun",
        "seen racecheck the planted race",
        "seen racecheck the planted early ring",
        "silent racecheck the planted sound ring",
    ]
    assert [line.split()[:3] for line in lines] == [
        ["clean", tool, file] for tool in ("memcheck", "racecheck") for file in ("a", "b")
    ]
    assert "exit 0: 2 passed, 1 warning in 3.20s; RACECHECK SUMMARY: 0 hazards" in lines[-1]
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == controls
    assert said[-1] == last


@pytest.mark.parametrize("called", ["functions called: other", "functions called: ", "nothing"])
def test_a_function_that_no_test_called_is_named(host, capsys, called):
    answers, listed = host
    answers(called=called)
    assert call(listed) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "not called by any test: op"


def test_every_lane_gives_back_in_all_that_is_compiled(host, tmp_path):
    """The planted kernels and the kernels themselves, which lie beside the shipped ones."""
    answers, listed = host
    answers()
    assert call(listed) == 0
    asked = [line for line in (tmp_path / "nvcc").read_text().splitlines() if "--version" not in line]
    assert len(asked) == 4  # planted.cu, the kernel, the manifest, the link
    assert all("-DENGINE_EVERY_LANE_GIVES_BACK" in line for line in asked)
    assert [path.suffix for path in build.BUILD.glob("engine-sm_90a-for-sanitizers-*")] == [".so"]
    assert not build.library_path("90a").exists()


def test_the_tests_run_over_the_kernels_for_sanitizers(monkeypatch, capsys):
    """And they say at last what they called."""
    chosen = []
    monkeypatch.setattr(library, "called", lambda: ["add_norm", "swiglu"])
    monkeypatch.setattr(library, "choose", chosen.append)
    monkeypatch.setattr(pytest, "main", lambda arguments: chosen.append(arguments[-2:]) or 5)
    assert sanitize.main(["--tests", "tests/a.py::test_a[1]", "tests/a.py::test_a[2]"]) == 5
    assert chosen == [build.FOR_SANITIZERS, ["tests/a.py::test_a[1]", "tests/a.py::test_a[2]"]]
    assert capsys.readouterr().out.splitlines()[-1] == "functions called: add_norm swiglu"


@pytest.mark.parametrize(
    ("name", "error", "code"), [("sound ring", 0, 0), ("sound ring", 100, 1), ("race", 0, 0), ("overrun", 719, 0)]
)
def test_a_sound_kernel_that_did_not_run_is_not_clean(monkeypatch, name, error, code):
    """A kernel with a fault may end in an error, which must not hide that the fault was seen."""
    planted = SimpleNamespace(engine_planted=lambda given: error if given == name.encode() else -1)
    monkeypatch.setattr(sanitize.ctypes, "CDLL", lambda _: planted)
    assert sanitize.main(["--planted", "planted.so", name]) == code


def test_planted_kernels_have_the_names_that_are_asked_for():
    assert set(re.findall(r'is\("(.*?)"\)', sanitize.SOURCE.read_text())) == {p.name for p in sanitize.CONTROLS}


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ("n = 3 if 'racecheck' in args and 'tests/b.py::test_b' in args else 0", "3 hazards displayed"),
        (
            "n = 0; passed = '1 failed, 1 passed in 2s'; (print(passed), sys.exit(1))",
            "exit 1: 1 failed, 1 passed in 2s",
        ),
        ("n = 0; sys.exit(0)", "exit 0: nothing said"),
        ("n = 0; passed = '3 skipped in 1s'", "3 skipped in 1s; ERROR SUMMARY: 0 errors"),
        ("n = 0; print('half', flush=True); time.sleep(30)", "cut by its limit: nothing said"),
    ],
)
def test_what_is_not_clean(host, capsys, tests, said):
    answers, listed = host
    answers(tests=tests)
    assert call(listed, "--limit", "1.5") == 1
    bad = [line for line in capsys.readouterr().out.splitlines() if line.startswith("NOT CLEAN")]
    assert any(said in line for line in bad)


@pytest.mark.parametrize("planted", ["n = 0", "n = 0; sys.exit(9)", "print('no device'); sys.exit(1)"])
def test_a_blind_tool_says_nothing_of_the_rest(host, capsys, planted):
    answers, listed = host
    answers(planted=planted)
    assert call(listed) == 2
    said = capsys.readouterr()
    assert "for the planted overrun; expected it to be seen" in said.err
    assert "clean" not in said.out


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        (f"{HONEST} if args[-1] != 'early ring' else 0", "for the planted early ring; expected it to be seen"),
        ("n = 1", "RACECHECK SUMMARY: 1 hazards displayed (1 errors), exit 9, for the planted sound ring; expected no"),
        (f"{HONEST}; n or sys.exit(1)", "found no summary, exit 1, for the planted sound ring; expected nothing"),
        (f"{HONEST}; n or sys.exit(0)", "found no summary, exit 0, for the planted sound ring; expected nothing"),
    ],
)
def test_a_tool_that_does_not_tell_a_sound_ring_from_a_wrong_one_is_not_believed(host, capsys, planted, said):
    answers, listed = host
    answers(planted=planted)
    assert call(listed) == 2
    told = capsys.readouterr()
    assert told.err.startswith("sanitize: racecheck: ")
    assert said in told.err
    assert told.err.count("\n") == 1
    assert "clean" not in told.out
    assert call(listed, "--tool", "memcheck") == 0


@pytest.mark.usefixtures("host")
def test_at_the_limit_what_the_tool_has_started_ends_too(tmp_path):
    """compute-sanitizer runs its target as a process of its own, which would keep the GPU."""
    child = tmp_path / "child"
    script(
        tmp_path / "bin",
        "compute-sanitizer",
        f"import subprocess\nmade = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(child)!r}, 'w').write(str(made.pid))\nprint('begun', flush=True)\ntime.sleep(60)",
    )
    outcome = sanitize.watched("racecheck", ["x"], "x", 1.5)
    assert (outcome.code, outcome.clean) == (sanitize.TIMED_OUT, False)
    about = Path(f"/proc/{child.read_text()}/stat")
    for _ in range(100):
        if not about.exists() or about.read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child lives")


def test_what_it_needs(host, capsys, monkeypatch, tmp_path):
    answers, listed = host
    answers()
    assert call(listed, "--tool", "initcheck") == 2
    assert "--tool initcheck: found no such tool; expected memcheck or racecheck" in capsys.readouterr().err
    listed.write_text("# nothing\n")
    assert call(listed) == 2
    assert "found no test" in capsys.readouterr().err
    assert call(tmp_path / "absent.txt") == 2
    listed.write_text("tests/a.py::test_a\n")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert call(listed) == 2
    assert "found no CUDA device that torch can use; expected one" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    script(tmp_path / "bin", "nvcc", f"'-c' in args and sys.exit('no such header')\n{NVCC.format(log='/dev/null')}")
    assert call(listed) == 2
    assert "no such header" in capsys.readouterr().err
    script(tmp_path / "bin", "nvcc", "sys.exit('planted.cu: no such architecture')")
    assert call(listed) == 2
    assert "nvcc: planted.cu: no such architecture; expected" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sanitize.shutil, "which", lambda *_, **__: None)
    assert call(listed) == 2
    assert "found no nvcc on PATH" in capsys.readouterr().err


@pytest.mark.slow
def test_the_list_names_tests_that_there_are_and_every_file_of_kernels():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-m",
        "gpu",
        "-p",
        "no:cacheprovider",
        "tests/ops",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    there = {line for line in done.stdout.splitlines() if "_cuda.py::" in line}
    listed = sanitize.tests_of(sanitize.LIST)
    assert {test for tests in listed.values() for test in tests} <= there
    assert set(listed) == {line.split("::")[0] for line in there}
