"""The command line and environment of the pinned server; a foreground server leaves no process behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gate.errors import OracleError, UsageError
from oracle import environment, pins, serve
from oracle.pins import load
from oracle.serve import argv, deviations


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for platform, pythonpath in (("cpu", None), ("cuda", "/site")):
        pin = load(platform)
        folder = pins.home(pin.platform, tmp_path)
        folder.mkdir(parents=True)
        source: environment.Source = "index" if pythonpath is None else "archive"
        environment.Environment(pin.platform, pin.digest, source, sys.executable, pythonpath, "now").write(folder)
    return tmp_path


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_the_command_line_is_as_pinned(platform: str, root: Path) -> None:
    command, _ = argv(platform, "ckpt", 8123, 512, 8, "bfloat16", ["--served-model-name", "m"], root=root)
    assert deviations(platform, command) == ()
    text = " ".join(command)
    assert "serve ckpt --host 127.0.0.1 --port 8123 --max-model-len 512 --max-num-seqs 8" in text
    assert "--kv-cache-dtype bfloat16" in text
    assert text.endswith("--served-model-name m")


def test_eager_mode_is_required_on_a_cpu_and_forbidden_on_cuda(root: Path) -> None:
    assert "--enforce-eager" in argv("cpu", "m", 1, 2, 3, root=root)[0]
    assert "--enforce-eager" not in argv("cuda", "m", 1, 2, 3, root=root)[0]


def test_a_recipe_may_replace_a_default(root: Path) -> None:
    command, _ = argv("cuda", "m", 1, 2, 3, extra=["--gpu-memory-utilization=0.8"], root=root)
    assert [word for word in command if "utilization" in word] == ["--gpu-memory-utilization=0.8"]


@pytest.mark.parametrize(
    "extra",
    [
        ["--enforce-eager"],
        ["--enforce_eager"],
        ["--enforce-eag"],
        ["-cc.mode=none"],
        ["-O0"],
        ["--compilation_config={}"],
        ["--enable-prefix-caching"],
        ["--config", "x.yaml"],
        ["--speculative-config={}"],
        ["--load-format", "dummy"],
    ],
)
def test_a_weaker_denominator_is_refused_in_every_spelling(extra: list[str], root: Path) -> None:
    with pytest.raises(UsageError, match=r"oracle('s command line|\.args) has "):
        argv("cuda", "m", 1, 2, 3, extra=extra, root=root)


@pytest.mark.parametrize("option", ["--language-model-only", "--port", "--mamba_ssm_cache_dtype", "--host=0.0.0.0"])
def test_what_the_gate_sets_cannot_be_set_again(option: str, root: Path) -> None:
    with pytest.raises(UsageError, match=r"which the gate sets itself; remove it"):
        argv("cuda", "m", 1, 2, 3, extra=[option], root=root)


def test_a_command_line_that_lacks_a_required_flag_is_told() -> None:
    command = ["vllm", "serve", "m", "--no-enable-prefix-caching", "--mamba-ssm-cache-dtype", "bfloat16"]
    assert deviations("cuda", command) == ("lacks --language-model-only", "lacks --mamba-ssm-cache-dtype float32")


def test_the_environment_is_explicit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "somewhere in a shell profile")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    _, env = argv("cuda", "m", 1, 2, 3, root=root)
    assert env["CUDA_VISIBLE_DEVICES"] == "1"
    assert env["PYTHONPATH"] == "/site"
    assert env["HF_HUB_OFFLINE"] == env["VLLM_NO_USAGE_STATS"] == "1"
    assert {"VLLM_ATTENTION_BACKEND", "OMP_NUM_THREADS", "HF_TOKEN"}.isdisjoint(env)
    assert set(env) <= {*serve.INHERITED, *load("cuda").serve.env, "PYTHONPATH"}


def test_what_is_not_installed_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(OracleError, match="is not installed"):
        argv("cpu", "m", 1, 2, 3, root=tmp_path)


STUBBORN = """
import signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\\n"
                          "print('up', flush=True); time.sleep(120)"], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
{rest}
"""
RUNNER = """
import sys
from oracle import serve
sys.exit(serve.run_foreground([sys.executable, "-c", sys.argv[1]], {}, grace_s=0.2))
"""


@pytest.fixture
def foreground() -> Iterator[object]:
    started: list[subprocess.Popen[str]] = []

    def start(rest: str, before: str = "") -> tuple[subprocess.Popen[str], int]:
        """The runner, and the pid of its server's child, which ignores SIGINT."""
        command = [sys.executable, "-c", before + RUNNER, STUBBORN.format(rest=rest)]
        runner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=pins.REPOSITORY)
        started.append(runner)
        assert runner.stdout is not None
        return runner, int(runner.stdout.readline())

    yield start
    for runner in started:
        runner.kill()
        runner.wait()
        assert runner.stdout is not None
        runner.stdout.close()


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_stops_the_server_and_the_children_that_ignore_it(number: int, foreground: object) -> None:
    runner, child = foreground("time.sleep(120)")  # type: ignore[operator]
    runner.send_signal(number)
    assert runner.wait(60) != 0
    assert gone(child)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_runner_that_is_told_to_end_before_it_goes_on_leaves_no_server(number: int, foreground: object) -> None:
    """It lost its core as soon as the server was there."""
    kept = "import subprocess, time\nbegin = subprocess.Popen.__init__\n"
    kept += "def late(*a, **k):\n    begin(*a, **k)\n    time.sleep(2)\nsubprocess.Popen.__init__ = late\n"
    runner, child = foreground("time.sleep(120)", kept)  # type: ignore[operator]
    runner.send_signal(number)
    assert runner.wait(60) != -signal.SIGTERM
    assert gone(child)


def test_a_server_that_dies_leaves_no_child_and_its_status_is_passed_on(foreground: object) -> None:
    runner, child = foreground("sys.exit(7)")  # type: ignore[operator]
    assert runner.wait(60) == 7
    assert gone(child)


def test_a_server_that_ignores_the_interrupt_is_killed() -> None:
    code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(1, flush=True); time.sleep(120)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as server:
        assert server.stdout is not None
        server.stdout.readline()
        assert serve.stop_group(server, timeout_s=0.2) == -signal.SIGKILL


@pytest.mark.parametrize(
    "extra",
    [
        ["--max-num-seqs", "1"],
        ["--max_num_seqs=1"],
        ["--max-model-l", "64"],
        ["--kv-cache-dtype", "fp8"],
        ["--no-language-model-only"],
        ["--port", "1"],
    ],
)
def test_what_the_gate_sets_for_both_arms_cannot_be_set_again_for_the_oracle(extra: list[str], root: Path) -> None:
    """vLLM takes the last of two equal options: one sequence at a time would be a slow and flattering oracle."""
    with pytest.raises(UsageError, match=r"oracle\.args has --.*, which the gate sets itself"):
        argv("cuda", "model", 8001, 64, 8, extra=extra, root=root)
