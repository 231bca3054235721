"""The lock: one holder, by name; the same file by any path; proof of holding; released on every way out."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gate import lock
from gate import run as gate_run
from gate.errors import LockHeldError, PreconditionError, StorageError
from gate.observe import gpu
from gate.observe.rows import Arm
from gate.observe.store import RunFile, Store
from gate.plan import ArmPlan, Plan, Vocabulary, make_plan
from gate.progress import Ui
from gate.recipe import Recipe

CARDS = [(0, "GPU-aaaa"), (1, "GPU-bbbb"), (2, "GPU-bbcc")]
HOLDER = """
import sys
from pathlib import Path
from gate import lock
lock.take(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def recipe(on_gpu: bool) -> Recipe:
    return Recipe.model_validate(
        {"schema_version": 1, "name": "r", "gpu": on_gpu, "checkpoint": {"path": "checkpoints/r"}}
    )


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(lock.FOLDER_VARIABLE, str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.fixture
def three_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "gpus", lambda: tuple(gpu.Gpu(i, "H", uuid, 1) for i, uuid in CARDS))


def test_a_run_without_a_gpu_locks_the_host_and_says_who(folder: Path) -> None:
    with lock.hold(recipe(on_gpu=False)) as held:
        assert [path for path, _ in held.files] == [folder.resolve() / "host.lock"]
        assert held.held()
        said = json.loads((folder / "host.lock").read_text())
        assert said["pid"] == os.getpid()
        assert set(said) == {"user", "pid", "host", "since", "command"}


def test_a_second_gate_is_told_who_holds_it_and_exits_75(folder: Path) -> None:
    with lock.hold(recipe(on_gpu=False)), pytest.raises(LockHeldError) as caught:
        lock.take(folder / "host.lock")
    assert caught.value.exit_code == 75
    assert f"(pid {os.getpid()} on " in str(caught.value)
    assert " since 20" in str(caught.value)


def test_two_paths_to_one_folder_are_one_lock(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    with lock.hold(recipe(on_gpu=False)):
        monkeypatch.setenv(lock.FOLDER_VARIABLE, str(tmp_path / "link" / ".." / "link"))
        with pytest.raises(LockHeldError), lock.hold(recipe(on_gpu=False)):
            pytest.fail("locked twice")


def test_it_is_free_again_after_an_exception(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt), lock.hold(recipe(on_gpu=False)):
        raise KeyboardInterrupt
    os.close(lock.take(folder / "host.lock"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_is_free_again_after_its_holder_was_killed(number: int, folder: Path) -> None:
    path = folder / "host.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LockHeldError, match=rf"\(pid {holder.pid} on "):
            lock.take(path)
        holder.send_signal(number)
        holder.wait()
    os.close(lock.take(path))


def test_a_child_does_not_inherit_it(folder: Path) -> None:
    path = folder / "host.lock"
    descriptor = lock.take(path)
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        os.close(descriptor)
        os.close(lock.take(path))
        child.kill()


def replaced(path: Path) -> None:
    path.unlink()
    path.write_text("")


@pytest.mark.parametrize("lose", [replaced, Path.unlink])
def test_a_file_that_was_replaced_or_removed_is_not_held(lose: object, folder: Path) -> None:
    with lock.hold(recipe(on_gpu=False)) as held:
        lose(folder / "host.lock")  # type: ignore[operator]
        assert not held.held()


def test_a_lock_that_was_let_go_is_not_held() -> None:
    with lock.hold(recipe(on_gpu=False)) as held:
        fcntl.flock(held.files[0][1], fcntl.LOCK_UN)
        assert not held.held()


def test_a_planted_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (tmp_path / "precious").write_text("data")
    (folder / "host.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(StorageError, match="cannot open the lock file"), lock.hold(recipe(on_gpu=False)):
        pytest.fail("followed")
    assert (tmp_path / "precious").read_text() == "data"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(lock.FOLDER_VARIABLE, str(tmp_path / "file" / "locks"))
    with pytest.raises(StorageError, match=f"set {lock.FOLDER_VARIABLE}"), lock.hold(recipe(on_gpu=False)):
        pytest.fail("locked")


@pytest.mark.usefixtures("three_cards")
def test_a_gpu_run_locks_its_visible_cards_one_file_each(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    with lock.hold(recipe(on_gpu=True)) as held:
        assert [path.name for path, _ in held.files] == ["GPU-aaaa.lock", "GPU-bbcc.lock"]
        os.close(lock.take(folder / "GPU-bbbb.lock"))


@pytest.mark.usefixtures("three_cards")
def test_no_lock_is_kept_when_the_second_of_two_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    descriptor = lock.take(folder / "GPU-bbbb.lock")
    with pytest.raises(LockHeldError), lock.hold(recipe(on_gpu=True)):
        pytest.fail("locked")
    os.close(lock.take(folder / "GPU-aaaa.lock"))
    os.close(descriptor)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, ("GPU-aaaa", "GPU-bbbb", "GPU-bbcc")),
        ("1", ("GPU-bbbb",)),
        ("2, 1", ("GPU-bbbb", "GPU-bbcc")),
        ("GPU-aaaa", ("GPU-aaaa",)),
        ("GPU-bbb", ("GPU-bbbb",)),
        ("GPU-bb", ()),
        ("0,7,1", ("GPU-aaaa",)),
        ("-1", ()),
        ("", ()),
    ],
)
def test_visible_cards_are_read_as_cuda_reads_them(setting: str | None, expected: tuple[str, ...]) -> None:
    assert lock.visible(setting, CARDS) == expected


@pytest.mark.usefixtures("three_cards")
def test_a_gpu_recipe_with_all_cards_hidden_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(PreconditionError, match="CUDA_VISIBLE_DEVICES='' leaves no GPU visible"):
        lock.keys(recipe(on_gpu=True))


def test_a_gpu_recipe_on_a_machine_without_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "gpus", tuple)
    with pytest.raises(PreconditionError, match="needs a GPU and NVML shows none"):
        lock.keys(recipe(on_gpu=True))


def planned(candidate: str | None, oracle: str | None, attached: bool = False) -> Plan:
    """A plan whose arms get these CUDA_VISIBLE_DEVICES; attached: its candidate is a URL."""

    def arm(name: Arm, setting: str | None, argv: tuple[str, ...] | None) -> ArmPlan:
        return ArmPlan(
            arm=name,
            kind="url" if argv is None else "command",
            argv=argv,
            env={} if setting is None else {"CUDA_VISIBLE_DEVICES": setting},
            url="http://x",
            model="",
            checkpoint="c",
            checkpoint_digest=None,
        )

    return make_plan(
        recipe(on_gpu=True),
        coin="candidate",
        seed=1,
        candidate=arm("candidate", candidate, None if attached else ("serve",)),
        oracle=arm("oracle", oracle, ("serve",)),
        vocabulary=Vocabulary(size=1000),
    )


@pytest.mark.usefixtures("three_cards")
@pytest.mark.parametrize("shell", [None, "0", ""])
def test_the_planned_cards_are_locked_whatever_the_shell_says(
    monkeypatch: pytest.MonkeyPatch, shell: str | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shell is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shell)
    with lock.hold(planned("1", "GPU-bbbb")) as held:
        assert [path.name for path, _ in held.files] == ["GPU-bbbb.lock"]
    assert lock.cards(planned(None, None)) == ("GPU-aaaa", "GPU-bbbb", "GPU-bbcc")
    assert lock.cards(planned(None, "2", attached=True)) == ("GPU-bbcc",)


@pytest.mark.usefixtures("three_cards")
def test_planned_cards_that_are_not_there_are_refused() -> None:
    with pytest.raises(PreconditionError, match="CUDA_VISIBLE_DEVICES='7' leaves no GPU visible to the servers"):
        lock.keys(planned("7", "7"))


DIFFERENT = "the candidate gets CUDA_VISIBLE_DEVICES='1' and the oracle gets CUDA_VISIBLE_DEVICES=.*; expected the same"


@pytest.mark.usefixtures("three_cards")
@pytest.mark.parametrize("oracle", [None, "0", "1,2", ""])
def test_arms_on_different_cards_are_refused(oracle: str | None) -> None:
    with pytest.raises(PreconditionError, match=DIFFERENT), lock.hold(planned("1", oracle)):
        pytest.fail("locked")


@pytest.mark.usefixtures("three_cards")
def test_a_recipe_that_moves_one_arm_is_refused_before_there_is_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    asked = recipe(on_gpu=True).model_dump()
    asked["candidate"]["env"] = {"CUDA_VISIBLE_DEVICES": "1"}
    with pytest.raises(PreconditionError, match=DIFFERENT):
        lock.keys(Recipe.model_validate(asked))
    asked["oracle"]["env"] = {"CUDA_VISIBLE_DEVICES": "1"}
    assert lock.keys(Recipe.model_validate(asked)) == ("GPU-bbbb",)


@pytest.mark.usefixtures("three_cards")
def test_a_resumed_run_locks_its_planned_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, locked = Store(tmp_path / "box" / "r"), []

    def measure(_plan: Plan, _place: Store, held: lock.Lock, _ui: Ui) -> int:
        locked.extend(path.name for path, _ in held.files)
        return 0

    monkeypatch.setattr(gate_run, "preflight", lambda *_: ())
    monkeypatch.setattr(gate_run, "measure", measure)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    about = RunFile(run_id="r", host="box", started_at="2026-01-01T00:00:00+00:00", machine=gate_run.machine())
    place.create(planned("1", "1"), about)
    gate_run.resume(place.folder, Ui())
    assert locked == ["GPU-bbbb.lock"]


def test_a_folder_that_was_there_keeps_its_permissions(tmp_path: Path) -> None:
    """GATE_LOCK_DIR may be somebody's home."""
    tmp_path.chmod(0o700)
    os.close(lock.take(tmp_path / "host.lock"))
    assert tmp_path.stat().st_mode & 0o7777 == 0o700


def test_a_user_without_a_name_can_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 54321")

    monkeypatch.setattr(lock.getpass, "getuser", nameless)
    os.close(lock.take(tmp_path / "host.lock"))
    assert f"uid {os.getuid()}" in (tmp_path / "host.lock").read_text()
