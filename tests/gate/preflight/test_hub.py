"""The hub: pinned revisions alone, offline is respected and said, every refusal in one line. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, RevisionNotFoundError

from gate.errors import CheckpointError, StorageError
from gate.preflight import hub

REVISION = "0893e1606ff3d5f97a441f405d5fc541a6bdf404"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def online(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A hub that has the repository, 3 files of 10 bytes; returns what snapshot_download was asked."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    asked: list[dict[str, Any]] = []

    def model_info(_self: object, repo: str, **_options: Any) -> Any:
        assert repo == "a/b"
        return SimpleNamespace(siblings=[SimpleNamespace(size=10)] * 3)

    def snapshot_download(repo: str, **options: Any) -> str:
        asked.append({"repo": repo, **options})
        return str(cache / "snapshots" / options["revision"])

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


@pytest.mark.parametrize("revision", ["main", "0893e16", REVISION.upper(), REVISION + "0", ""])
def test_a_branch_or_a_short_hash_is_refused(revision: str) -> None:
    for ask in (lambda: hub.cached("a/b", revision), lambda: hub.download("a/b", revision, "why")):
        with pytest.raises(CheckpointError, match="expected 40 hex digits"):
            ask()


def test_offline_is_respected_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        CheckpointError, match="a/b is gone, and HF_HUB_OFFLINE forbids the network; expected a/b at 08"
    ):
        hub.download("a/b", REVISION, "a/b is gone")


def test_an_empty_cache_is_none(cache: Path) -> None:
    assert hub.cached("a/b", REVISION) is None
    assert list(cache.iterdir()) == []


def test_the_download_is_of_the_revision_and_of_no_code(online: list[dict[str, Any]]) -> None:
    assert hub.download("a/b", REVISION, "why").name == REVISION
    assert online[0]["revision"] == REVISION
    assert {"*.py", "*.bin", "*.pt", "*.pth"}.isdisjoint(online[0]["allow_patterns"])


def test_the_hub_delivering_another_revision_is_refused(
    online: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path / "other"))
    with pytest.raises(CheckpointError, match="the hub delivered other of a/b"):
        hub.download("a/b", REVISION, "why")
    assert online == []


@pytest.mark.usefixtures("online")
def test_a_disk_that_is_too_small_is_told_before_the_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda _: SimpleNamespace(free=30))
    with pytest.raises(StorageError, match=r"0\.0 GB free in .*; set HF_HOME elsewhere"):
        hub.download("a/b", REVISION, "why")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RevisionNotFoundError, "a/b has no revision 0893e16.*correct the recipe"),
        (HfHubHTTPError, "why, and the hub cannot be reached .*goes on where it stopped"),
        (HfHubHTTPError.__bases__[0], "why, and the hub cannot be reached"),
        (ConnectionResetError, "why, and the hub cannot be reached"),
    ],
)
@pytest.mark.usefixtures("online")
def test_every_refusal_is_one_line(error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error.__new__(error, "nothing there")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(CheckpointError, match=message) as caught:
        hub.download("a/b", REVISION, "why")
    assert "\n" not in str(caught.value)
