"""tools/sanitize.py with stand-ins for nvcc and compute-sanitizer: what is clean, what is not, a tool that is blind."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
import sanitize

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = {
    "memcheck": "ERROR SUMMARY: {n} errors",
    "racecheck": "RACECHECK SUMMARY: {n} hazards displayed ({n} errors)",
}


def script(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys, time\nargs = sys.argv[1:]\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def host(tmp_path, monkeypatch):
    """(folder on PATH, a list of two files' tests, what to call); compute-sanitizer's answers are made by `answers`."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    monkeypatch.setenv("PATH", f"{bin_}:/usr/bin:/bin")
    script(bin_, "nvcc", "open(args[args.index('-o') + 1], 'w').close()")
    listed = tmp_path / "list.txt"
    listed.write_text("# what is run\ntests/a.py::test_a[1]\ntests/b.py::test_b\n\ntests/a.py::test_a[2]\n")

    def answers(planted="n = 1", tests="n = 0"):
        summary = f"{SUMMARY!r}[args[args.index('--tool') + 1]]"
        script(
            bin_,
            "compute-sanitizer",
            f"assert args[2:6] == ['--kernel-name', 'kns=engine', '--error-exitcode', '9'], args\n"
            f"passed = '2 passed, 1 warning in 3.20s'\n"
            f"if '--planted' in args:\n    {planted}\nelse:\n    {tests}\n"
            f"    print('=' * 8, passed, '=' * 8)\n"
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
    assert "3 tests; each tool saw its planted fault" in head
    assert [line.split()[:3] for line in lines] == [
        ["clean", tool, file] for tool in ("memcheck", "racecheck") for file in ("a", "b")
    ]
    assert "exit 0: 2 passed, 1 warning in 3.20s; RACECHECK SUMMARY: 0 hazards" in lines[-1]
    assert capsys.readouterr().out.count("a planted fault") == 2


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
    assert "for a kernel with a planted fault; expected it to be seen" in said.err
    assert "clean" not in said.out


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
