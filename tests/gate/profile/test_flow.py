"""The whole `gate profile` on stand-ins: a scripted server under a stand-in for nsys, and one with profiler routes."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gate import listing, shown
from gate.errors import ArmError, PreconditionError, StorageError, UsageError
from gate.inputs import Asked
from gate.observe import gpu
from gate.observe.rows import Arm
from gate.profile import flow, store
from gate.profile.capture import WALL_ROUNDS, Captured, Setting
from gate.profile.conclude import conclude, derive
from gate.profile.flow import ProfileAsked, profile
from gate.profile.rows import ProfileReport, Role
from gate.progress import Ui
from gate.runs import entries
from tests.gate.bench import children
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
RECIPE = """
schema_version = 1
name = "fakes"
gpu = true
max_model_len = 512
[checkpoint]
path = "{checkpoint}"
[workload]
prompt_tokens = 12
output_tokens = 6
[protocol]
concurrency = [1]
ready_timeout_s = 60
request_timeout_s = 30
[candidate]
kind = "{command}"
env = {{ PYTHONPATH = "{root}", FAKE_NSYS_STATE = "{state}" }}
[oracle]
kind = "{command}"
platform = "cpu"
env = {{ PYTHONPATH = "{root}", FAKE_NSYS_STATE = "{state}" }}
"""


class Bench:
    def __init__(self, folder: Path, checkpoint: Path) -> None:
        self.out, self.folder, self.checkpoint = folder / "results", folder, checkpoint
        self.port = free_port()

    def run(self, server: str, more: ProfileAsked, **changes: object) -> int:
        recipe = self.folder / "fakes.toml"
        recipe.write_text(
            RECIPE.format(
                checkpoint=self.checkpoint, command=f"{sys.executable} {server}", root=ROOT, state=self.folder
            )
        )
        asked = Asked(recipe=str(recipe), port=self.port, coin="candidate", **changes)  # type: ignore[arg-type]
        return profile(asked, more, self.out, Ui())

    @property
    def report(self) -> ProfileReport:
        folder = store.find(None, self.out)
        assert folder is not None
        return ProfileReport.model_validate_json((folder / store.REPORT).read_bytes())


@pytest.fixture
def bench(tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """With a GPU that NVML is said to show, a lock of its own, and nsys on PATH."""
    card = gpu.Gpu(0, "NVIDIA Imaginary", "GPU-0", 2**34)
    monkeypatch.setattr(gpu, "gpus", lambda: (card,))
    monkeypatch.setattr(flow, "preflight", lambda _plan, _out: ())
    monkeypatch.setenv("GATE_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("FAKE_NSYS_STATE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    tool = tmp_path / "bin" / "nsys"
    tool.parent.mkdir()
    tool.write_text(
        f"#!{sys.executable}\nimport runpy\nrunpy.run_module('tests.gate.profile.fake_nsys', run_name='__main__')\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    yield Bench(tmp_path, tiny_checkpoint)
    assert not children("fake")


FAKE = "-m gate.arm.fake --port {port} --preset instant"
PROFILED = "-m tests.gate.profile.fake_profiled {port}"


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(("backend", "server"), [("nsys", FAKE), ("cupti", PROFILED)])
def test_both_backends_give_the_same_levers(bench: Bench, backend: str, server: str, batch: int) -> None:
    """The candidate's W4A16 products take half as long again: 17 launches of 40 ms become 340 ms of delta a step.

    A step of four sequences is one step: as many launches, and a token for each.
    """
    code = bench.run(server, ProfileAsked(backend=backend), concurrency=str(batch))
    report = bench.report
    assert not report.refused
    assert {f.code for f in report.findings} == {"not-closed"}  # made-up kernels against a stand-in's wall time
    assert code == 2
    assert report.candidate is not None
    assert report.oracle is not None
    assert report.candidate.launches == report.oracle.launches == 78
    for table in (report.candidate, report.oracle):
        assert table.gap_us is not None
        assert 0 < table.gap_us <= (table.largest_gap_us or 0)
        assert (table.batch, table.steps) == (batch, 128)
    windows = store.read(store.require(None, bench.out)).windows
    assert {(w.concurrency, w.requests, w.completed) for w in windows} == {(batch, batch, batch)}
    assert {w.counted_tokens for w in windows} == {batch * (12 + 8), batch * (12 + 136)}
    for arm in store.read(store.require(None, bench.out)).arms:
        for took, first in ((arm.wall.short_us, arm.wall.short_first_us), (arm.wall.long_us, arm.wall.long_first_us)):
            assert len(took) == len(first) == WALL_ROUNDS
            assert all(0 < one <= whole for one, whole in zip(first, took, strict=True))
    levers = {lever.families: lever for lever in report.attribution.levers} if report.attribution else {}
    assert levers[("w4a16",)].delta_us == pytest.approx(340_000)
    assert levers[("w4a16",)].modules == ("lm_head", "mlp.down_proj", "mlp.gate_up_proj")
    others = [lever.delta_us for families, lever in levers.items() if families != ("w4a16",)]
    assert others == pytest.approx([0.0] * 8, abs=1)  # one of them the time between kernels
    assert report.attribution is not None
    assert report.attribution.drift == 0.0
    assert report.attribution.drift_source.startswith("the candidate before and after")


def test_what_a_profile_leaves_behind(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(FAKE, ProfileAsked(backend="nsys", control=False, roof_gb_per_s=1000))
    folder = store.find(None, bench.out)
    assert folder is not None
    there = {path.name for path in folder.iterdir()}
    assert there >= {"profile.json", "windows.parquet", "arms.json", "census.json", "attribution.json", "profile.md"}
    assert there >= {"stack.svg", "roofline.svg", "logs"}
    assert "traces" not in there  # 100 MB and more a window on a real server
    about = json.loads((folder / "profile.json").read_text())
    assert about["nsys"].startswith("NVIDIA Nsight Systems version 2025.3.2")
    shown = capsys.readouterr().out
    assert "W4A16 products" in shown
    assert "residual" in shown
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert conclude(folder) == 2  # derived again, byte for byte
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert derive(store.read(folder)) == bench.report
    assert flow.again(folder.name[:20], None, bench.out) == 2


@pytest.mark.parametrize(("keep", "left"), [(False, 0), (True, 8)])
def test_traces_stay_only_where_they_are_asked_for(
    bench: Bench, keep: bool, left: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two windows an arm, and of each the trace and that of a process without a GPU."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    bench.run(PROFILED, ProfileAsked(backend="cupti", control=False, keep_traces=keep))
    assert not list((tmp_path / "scratch").iterdir())
    assert len(list(bench.out.glob("*/*/traces/*/*.json*"))) == left


def test_what_was_measured_outlives_a_control_that_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = flow.capture

    def capture(setting: Setting, arm: Arm, role: Role, folder: Path, say: Callable[[str], None]) -> Captured:
        if role == "control":
            raise ArmError("the candidate died")
        return real(setting, arm, role, folder, say)

    monkeypatch.setattr(flow, "capture", capture)
    with pytest.raises(ArmError, match="the candidate died"):
        bench.run(PROFILED, ProfileAsked(backend="cupti"))
    assert "kept candidate (measured) and oracle (measured): gate profile 2" in capsys.readouterr().err
    assert flow.again(None, None, bench.out) == 2
    assert "ended early: the candidate died\n" in capsys.readouterr().out
    assert "\nEnded early: the candidate died\n" in next(bench.out.glob("*/*/profile.md")).read_text()
    (entry,) = entries(bench.out)
    assert (entry.complete, entry.failure) == (False, None)
    assert bench.report.oracle is not None
    assert bench.report.attribution is not None


def test_one_that_was_killed_in_its_control_is_incomplete_and_says_of_what(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a signal that leaves no word of why; between the two windows as well."""
    real = flow.capture

    def capture(setting: Setting, arm: Arm, role: Role, folder: Path, say: Callable[[str], None]) -> Captured:
        if role == "control":
            raise KeyboardInterrupt
        return real(setting, arm, role, folder, say)

    monkeypatch.setattr(flow, "capture", capture)
    with pytest.raises(KeyboardInterrupt):
        bench.run(PROFILED, ProfileAsked(backend="cupti"))
    (folder,) = (path.parent for path in bench.out.glob("*/*/profile.json"))
    (folder / "failed.json").unlink()
    assert listing.runs_text(entries(bench.out), bench.out).splitlines()[1].endswith("oracle incomplete, no control")
    capsys.readouterr()
    assert shown.report(None, bench.out) == 2
    said = "ncomplete: the control of the candidate was not traced; gate profile begins anew"
    assert f"\ni{said}\n" in capsys.readouterr().out
    shown.show(None, bench.out, every=False)
    assert f"\ni{said}\n" in capsys.readouterr().out
    assert f"\nI{said}.\n" in (folder / "profile.md").read_text()
    (entry,) = entries(bench.out)
    assert (entry.complete, entry.missing) == (False, "control")


def test_the_record_of_a_control_without_its_windows_is_no_control(bench: Bench) -> None:
    """A kill between the two files: the record of an arm is written before its windows."""
    bench.run(PROFILED, ProfileAsked(backend="cupti"))
    (folder,) = (path.parent for path in bench.out.glob("*/*/profile.json"))
    assert (bench.report.missing, entries(bench.out)[0].complete) == ((), True)
    made = store.read(folder)
    kept = tuple(window for window in made.windows if window.role == "measured")
    store.ProfileStore(folder).write_raw(made.arms, kept, made.census)
    conclude(folder)
    (entry,) = entries(bench.out)
    assert (entry.complete, entry.missing) == (False, "control")


def test_a_profile_beside_itself_is_no_comparison(bench: Bench) -> None:
    bench.run(PROFILED, ProfileAsked(backend="cupti", control=False))
    (folder,) = (path.parent for path in bench.out.glob("*/*/profile.json"))
    with pytest.raises(UsageError, match=f"{folder.name} twice; expected two profiles"):
        flow.again(folder.name, folder.name[:-3], bench.out)


def test_one_without_a_control_was_not_to_have_any(bench: Bench) -> None:
    bench.run(PROFILED, ProfileAsked(backend="cupti", control=False))
    (entry,) = entries(bench.out)
    assert (entry.complete, entry.missing, bench.report.missing) == (True, "", ())


def test_one_arm_alone_is_shown_and_proves_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real = flow.capture

    def capture(setting: Setting, arm: Arm, role: Role, folder: Path, say: Callable[[str], None]) -> Captured:
        if arm == "oracle":
            raise KeyboardInterrupt
        return real(setting, arm, role, folder, say)

    monkeypatch.setattr(flow, "capture", capture)
    with pytest.raises(KeyboardInterrupt):
        bench.run(PROFILED, ProfileAsked(backend="cupti"))
    assert flow.again(None, None, bench.out) == 2
    assert bench.report.candidate is not None
    assert (bench.report.oracle, bench.report.attribution, bench.report.refused) == (None, None, False)
    assert bench.report.candidate.notes[-1].startswith("holds 0.54 GB of weights; a step reads 0.00")


def test_a_server_without_a_profiler_is_one_line(bench: Bench) -> None:
    with pytest.raises(ArmError, match="/start_profile answered 405"):
        bench.run(FAKE, ProfileAsked(backend="cupti"))
    with pytest.raises(StorageError, match=r"nothing measured: .*/start_profile answered 405.*; then gate profile"):
        flow.again(None, None, bench.out)


def test_too_long_for_the_model_is_said_before_anything_starts(bench: Bench) -> None:
    with pytest.raises(UsageError, match="500 prompt and 136 output tokens; expected at most max_model_len 512"):
        bench.run(FAKE, ProfileAsked(prompt_tokens=500))
    assert store.find(None, bench.out) is None


def test_one_batch_size(bench: Bench) -> None:
    with pytest.raises(UsageError, match="a step has one batch size"):
        bench.run(FAKE, ProfileAsked(), concurrency="1,2")


def test_no_gpu_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "gpus", lambda: ())
    with pytest.raises(PreconditionError, match="needs an NVIDIA GPU and NVML shows none") as caught:
        profile(Asked(recipe="qwen3.6-27b-nvfp4"), ProfileAsked(), tmp_path, Ui())
    assert caught.value.exit_code == 69


def test_no_nsys_is_one_line(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(PreconditionError, match="nsys is not on PATH") as caught:
        bench.run(FAKE, ProfileAsked(backend="nsys"))
    assert caught.value.exit_code == 69


def test_a_recorded_profile_and_a_recipe_are_two_questions(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="profile old and recipe tiny; expected a recorded profile, or what to profile"
    ):
        flow.command("old", None, Asked(recipe="tiny"), ProfileAsked(), tmp_path, Ui())
    with pytest.raises(UsageError, match="profile old and concurrency 8; expected a recorded profile, or what to"):
        flow.command("old", None, Asked(concurrency="8"), ProfileAsked(), tmp_path, Ui())
    with pytest.raises(UsageError, match="profile old and rounds 2; expected a recorded profile, or what to profile"):
        flow.command("old", "other", Asked(), ProfileAsked(rounds=2), tmp_path, Ui())
    with pytest.raises(UsageError, match="--diff old alone; expected the profile to compare it with"):
        flow.command(None, "old", Asked(), ProfileAsked(), tmp_path, Ui())
    with pytest.raises(UsageError, match="no profile 'old'"):
        flow.command("old", None, Asked(), ProfileAsked(), tmp_path, Ui())


def test_a_cpu_recipe_is_refused(bench: Bench) -> None:
    with pytest.raises(UsageError, match="recipe tiny runs on the CPU"):
        profile(Asked(recipe="tiny", port=bench.port), ProfileAsked(), bench.out, Ui())
