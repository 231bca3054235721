"""The command line from outside: exit codes, one line for a mistake, a light import, signals at any moment."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gate import cli, interrupt
from gate.arm.fake import FakeServer
from gate.arm.fake_script import preset
from tests.ports import free_port

ROOT = Path(__file__).parents[2]


def gate(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=300)


def refused(done: subprocess.CompletedProcess[str], code: int, *said: str) -> None:
    """Exit code, and a last line of ours that says all of it; never a traceback."""
    assert done.returncode == code, done.stderr
    lines = done.stderr.strip().splitlines()
    assert "Traceback" not in done.stderr
    assert lines[-1].startswith("gate: ")
    for part in said:
        assert part in lines[-1]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The same in this process, which is quicker."""
    monkeypatch.setattr(interrupt, "install", lambda: None)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["gate", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        printed = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return subprocess.CompletedProcess(arguments, end.value.code, printed.out, printed.err)

    return run


def test_import_is_light() -> None:
    heavy = ("torch", "numpy", "pandas", "matplotlib", "pyarrow", "scipy", "vllm", "transformers", "aiohttp", "uvloop")
    code = f"import sys, gate.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_plan_says_that_levels_left_out_make_a_run_indicative(here: Callable[..., Any]) -> None:
    lines = here("plan", "--recipe", "tiny", "--conc", "1,2").stdout.splitlines()
    told = [line for line in lines if line.startswith("note       a run of it will be indicative: ")]
    assert [line.rpartition(": ")[2] for line in told] == ["4"]
    assert "indicative" not in here("plan", "--recipe", "tiny").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--recpe", "tiny"], "--recipe"),
        (["rnu"], "run"),
        (["run"], "exactly one is needed"),
        (["run", "--recipe", "a", "--model", "b"], "exactly one is needed"),
        (["run", "--recipe", "no-such-recipe"], "no recipe 'no-such-recipe'"),
        (["run", "--recipe", "tiny", "--conc", "1,x"], "numbers with commas"),
        (["run", "--recipe", "tiny", "--conc", "0"], "distinct numbers from 1 up"),
        (["run", "--recipe", "tiny", "--reps", "many"], "gate: --reps 'many'; expected a whole number"),
        (["tokens", "--recipe", "tiny", "--seeds", "1,2"], "gate: --seeds '1,2'; expected a whole number"),
        (["run", "--recipe", "tiny", "--seed", "1.5"], "gate: --seed '1.5'; expected a whole number"),
        (["sweep", "--recipe", "tiny", "--reps", "0"], "gate: --reps 0; expected 1 or more"),
        (["sweep", "--recipe", "tiny", "--reps", "101"], "gate: --reps 101; expected 100 or less"),
        (["profile", "--recipe", "tiny", "--roof", "x"], "gate: --roof 'x'; expected a number"),
        (["oracle", "serve", "x", "--port", "many"], "--port 'many'; expected a whole number"),
        (["run", "--recipe", "tiny", "--residency", "half"], "residency = 'half'"),
        (["plan", "--recipe", "tiny", "--coin", "heads"], "expected candidate or oracle"),
        (["plan", "--recipe", "tiny", "--port", "70000"], "1 to 65534"),
        (["show", "no-such-run", "--out", "/nowhere"], "no runs under /nowhere"),
    ],
)
def test_usage_mistake_is_one_line_and_64(here: Callable[..., Any], arguments: list[str], said: str) -> None:
    refused(here(*arguments), 64, said)


@pytest.mark.parametrize("how", ["version", "--version"])
def test_version_both_ways(here: Callable[..., Any], how: str) -> None:
    done = here(how)
    assert (done.returncode, done.stdout.strip()) == (0, importlib.metadata.version("gate-and-engine"))


@pytest.mark.parametrize("module", ["gate.arm.fake", "gate.client.metronome"])
def test_reading_numbers_stay_out_of_help(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True)
    assert not re.search(r"^\d ", done.stdout, re.MULTILINE)


RECIPE = """schema_version = 1
name = "fakes"
gpu = false
[checkpoint]
path = "{checkpoint}"
{more}
[workload]
prompt_tokens = 12
output_tokens = 6
[protocol]
concurrency = [1]
repetitions = 2
ready_timeout_s = 30
[candidate]
kind = "{python} -m gate.arm.fake --port {{port}} --preset {preset}"
[oracle]
kind = "{python} -m gate.arm.fake --port {{port}} --preset instant"
platform = "cpu"
"""


def write_recipe(folder: Path, checkpoint: Path | str, preset: str = "instant", more: str = "") -> str:
    path = folder / "fakes.toml"
    text = RECIPE.format(checkpoint=checkpoint, python=sys.executable, preset=preset, more=more)
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GATE_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("GATE_HOST", "box")
    return tmp_path


def test_unknown_recipe_key_names_the_nearest(here: Callable[..., Any], place: Path) -> None:
    path = write_recipe(place, "/none", more='digset = "x"')
    refused(here("recipe", "check", path), 64, "unknown key 'digset' in [checkpoint]; did you mean 'digest'?")


def test_missing_checkpoint_says_how_to_make_it(here: Callable[..., Any], place: Path) -> None:
    path = write_recipe(place, "/no/such/folder", more='make = "make checkpoints/x"')
    refused(here("run", "--recipe", path), 69, "no checkpoint at /no/such/folder", "make checkpoints/x")


def test_a_plan_is_shown_before_its_checkpoint_is_made(
    here: Callable[..., Any], place: Path, tiny_checkpoint: Path
) -> None:
    """The shipped one, then the oracle's copy of one that is there."""
    for there, more in (("/no/such/folder", ""), (str(tiny_checkpoint), 'oracle_path = "/no/such/folder"')):
        path = write_recipe(place, there, more=f'make = "make checkpoints/x"\n{more}')
        planned = here("plan", "--recipe", path, "--coin", "oracle")
        lines = planned.stdout.splitlines()
        assert (planned.returncode, lines[0].split()) == (0, ["plan", "–"])
        said = "no checkpoint at /no/such/folder: the plan's id and its digests are known once it is made, with: make"
        assert lines[1] == f"note       {said} checkpoints/x"
        assert "           checkpoint /no/such/folder, digest –" in lines
        assert lines[-1].split() == ["003-oracle-c1-r1", "oracle", "1", "1", "2", "–"]
        refused(here("plan", "--recipe", path, "--json"), 69, said, "without --json")


def test_a_checkpoint_that_nothing_makes_is_no_plan(here: Callable[..., Any], place: Path) -> None:
    path = write_recipe(place, "/no/such/folder")
    refused(here("plan", "--recipe", path), 69, "no checkpoint at /no/such/folder; correct the path in the recipe")


def test_wrong_digest_is_refused(here: Callable[..., Any], place: Path, tiny_checkpoint: Path) -> None:
    path = write_recipe(place, tiny_checkpoint, more=f'digest = "{"0" * 64}"')
    refused(here("plan", "--recipe", path), 69, "has digest", "another checkpoint")


@pytest.mark.parametrize("damage", ["cut in half", "shard gone", "no config"])
def test_damaged_checkpoint_is_one_line(
    here: Callable[..., Any], place: Path, tiny_checkpoint: Path, damage: str
) -> None:
    broken = place / "broken"
    shutil.copytree(tiny_checkpoint, broken)
    weights = next(broken.glob("*.safetensors"))
    if damage == "cut in half":
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    elif damage == "shard gone":
        weights.unlink()
    else:
        (broken / "config.json").unlink()
    refused(here("plan", "--recipe", write_recipe(place, broken)), 69, str(broken))


def test_checkpoint_of_the_hub_that_is_not_here_is_one_line(
    here: Callable[..., Any], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = Path(write_recipe(place, "/none"))
    pinned = 'hub = "no-such-org/no-such-model"\nrevision = "0893e1606ff3d5f97a441f405d5fc541a6bdf404"'
    path.write_text(path.read_text().replace('path = "/none"', pinned), encoding="utf-8")
    said = "no-such-org/no-such-model is not in the local cache"
    refused(here("run", "--recipe", str(path)), 69, said, "HF_HUB_OFFLINE forbids the network")
    refused(here("plan", "--recipe", str(path), "--json"), 69, said, "without --json")
    planned = here("plan", "--recipe", str(path), "--coin", "oracle")
    lines = planned.stdout.splitlines()
    assert (planned.returncode, lines[0].split()) == (0, ["plan", "–"])
    assert lines[1].startswith(f"note       {said}: ")
    assert sum("checkpoint no-such-org/no-such-model, digest –" in line for line in lines) == 2
    assert lines[-1].split() == ["003-oracle-c1-r1", "oracle", "1", "1", "2", "–"]


def test_plan_prints_legs_and_an_id_that_repeats(here: Callable[..., Any], place: Path, tiny_checkpoint: Path) -> None:
    path = write_recipe(place, tiny_checkpoint)
    one, two = (here("plan", "--recipe", path, "--coin", "oracle").stdout for _ in range(2))
    assert one == two
    assert [line.split()[0] for line in one.splitlines()[-4:]] == [
        "000-oracle-c1-r0",
        "001-candidate-c1-r0",
        "002-candidate-c1-r1",
        "003-oracle-c1-r1",
    ]
    tossed = here("plan", "--recipe", path, "--conc", "1,2").stdout.splitlines()
    (command,) = [shlex.split(line)[2:] for line in tossed if line.startswith("repeat")]
    assert command[0] == "run"
    assert {"--recipe", path, "--conc", "1,2", "--coin", "--seed", "0"} <= set(command)
    assert here("plan", *command[1:]).stdout.splitlines() == tossed
    other = here("plan", "--recipe", path, "--coin", "candidate").stdout
    assert other.splitlines()[0] != one.splitlines()[0]


def ignore_sigint() -> None:
    """What a shell does to its background jobs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Running:
    """A `gate run` in the background."""

    def __init__(self, place: Path, recipe: str) -> None:
        self.out = place / "results"
        self.port = free_port()
        self.log = place / "stderr"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "gate",
                    "run",
                    "--recipe",
                    recipe,
                    "--out",
                    str(self.out),
                    "--port",
                    str(self.port),
                ],
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=ROOT,
                preexec_fn=ignore_sigint,
            )

    def until(self, ready: Callable[[], object]) -> None:
        deadline = time.monotonic() + 180
        while not ready():
            assert self.process.poll() is None or ready(), self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def said(self, text: str) -> Callable[[], bool]:
        return lambda: text in self.log.read_text()

    def ports_are_free(self) -> bool:
        for port in (self.port, self.port + 1):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    return False
        return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "moment"),
    [(signal.SIGINT, "start"), (signal.SIGINT, "leg"), (signal.SIGTERM, "leg"), (signal.SIGHUP, "start")],
)
def test_signal_ends_servers_keeps_legs_and_frees_the_lock(
    here: Callable[..., Any], place: Path, tiny_checkpoint: Path, signum: int, moment: str
) -> None:
    recipe = write_recipe(place, tiny_checkpoint, "never-healthy" if moment == "start" else "no-answer")
    running = Running(place, recipe)
    running.until(running.said("starting the candidate" if moment == "start" else "candidate c1"))
    if moment == "leg":
        running.until(
            lambda: list(running.out.glob("box/*/legs/*-oracle-*/legs.parquet")) or running.said("leg 1/4: candidate")()
        )
    running.process.send_signal(signum)
    code = running.process.wait(120)
    assert code == 130, running.log.read_text()
    said = running.log.read_text()
    assert "Traceback" not in said
    (folder,) = running.out.glob("box/*")
    assert f"run {folder.name}" in said
    assert f"gate resume {folder.name}" in said.replace("\n", " ")
    assert running.ports_are_free()
    assert here("plan", "--recipe", recipe).returncode == 0
    assert list(running.out.glob("box/*/plan.json"))


@pytest.mark.slow
def test_killed_gate_leaves_no_server_and_resumes(here: Callable[..., Any], place: Path, tiny_checkpoint: Path) -> None:
    """Each server answers its first leg of three requests and no more until the gate is killed, or it might be done."""
    script = place / "script.toml"
    script.write_text('token_ms = 0.0\nfault = "no-answer"\nfault_first = 3\n', encoding="utf-8")
    recipe = Path(write_recipe(place, tiny_checkpoint))
    text = recipe.read_text(encoding="utf-8").replace("--preset instant", f"--script {shlex.quote(str(script))}")
    recipe.write_text(text, encoding="utf-8")
    running = Running(place, str(recipe))
    running.until(lambda: list(running.out.glob("box/*/legs/000-*/legs.parquet")))
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()
    script.write_text("token_ms = 0.0\n", encoding="utf-8")
    deadline = time.monotonic() + 60
    while not running.ports_are_free() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running.ports_are_free()
    done = gate("resume", "--out", str(running.out))
    assert done.returncode in (0, 1, 2, 3), done.stderr
    listed = here("list", "--out", str(running.out)).stdout
    assert " 4/4" in listed
    assert "incomplete" not in listed


def test_never_ready_candidate_is_one_line_and_69(place: Path, tiny_checkpoint: Path) -> None:
    recipe = write_recipe(place, tiny_checkpoint, "never-healthy")
    text = Path(recipe).read_text().replace("ready_timeout_s = 30", "ready_timeout_s = 1")
    Path(recipe).write_text(text, encoding="utf-8")
    done = gate("run", "--recipe", recipe, "--out", str(place / "results"), "--port", str(free_port()))
    refused(done, 69, "the candidate was not ready after 1 s", "ready_timeout_s")


def test_occupied_port_is_one_line_and_69(place: Path, tiny_checkpoint: Path) -> None:
    recipe = write_recipe(place, tiny_checkpoint)
    with FakeServer(preset("good")) as taken:
        done = gate("run", "--recipe", recipe, "--out", str(place / "results"), "--port", str(taken.port))
        refused(done, 69, str(taken.port), "taken")


def test_held_lock_is_one_line_and_75(place: Path, tiny_checkpoint: Path) -> None:
    from gate.lock import hold
    from gate.recipe import load

    recipe = write_recipe(place, tiny_checkpoint)
    with hold(load(recipe)):
        done = gate("run", "--recipe", recipe, "--out", str(place / "results"))
    refused(done, 75, "is held by", f"pid {os.getpid()}")


def test_attached_servers_stay_up(here: Callable[..., Any], place: Path, tiny_checkpoint: Path) -> None:
    recipe = write_recipe(place, tiny_checkpoint)
    with FakeServer(preset("instant")) as one, FakeServer(preset("instant")) as two:
        done = gate("run", "--recipe", recipe, "--candidate", one.url, "--oracle", two.url, "--out", str(place / "r"))
        assert done.returncode in (0, 1, 2, 3), done.stderr
        assert here("show", "--out", str(place / "r")).stdout == done.stdout
        assert here("report", "--out", str(place / "r")).stdout == done.stdout
        assert len(one.requests) == len(two.requests) == 6
