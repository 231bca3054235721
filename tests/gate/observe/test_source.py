"""The gate's own commit: a repository's, with its changes; nothing elsewhere."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gate.observe import source as sources


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    for words in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    return tmp_path


def test_a_clean_and_a_changed_tree(repository: Path) -> None:
    head = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    clean = sources.source()
    assert clean is not None
    assert (clean.commit, clean.dirty) == (head.stdout.strip(), False)
    (repository / "results").touch()
    assert sources.source() == clean
    subprocess.run(["git", "-C", str(repository), "add", "results"], check=True)
    changed = sources.source()
    assert changed is not None
    assert changed.dirty
    assert changed.text().endswith("with uncommitted changes")


def test_no_repository_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    assert sources.source() is None


def test_no_git_is_none(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    assert sources.source() is None


def test_the_engines_sources_have_the_digest_that_it_reports() -> None:
    from engine import manifest

    manifest.source_sha256.cache_clear()
    assert sources.engine_sha256() == manifest.source_sha256()


def test_a_changed_source_has_another_digest(tmp_path: Path) -> None:
    assert sources.engine_sha256(tmp_path) is None
    (tmp_path / "a.py").write_text("1")
    first = sources.engine_sha256(tmp_path)
    (tmp_path / "notes.md").write_text("no source")
    assert sources.engine_sha256(tmp_path) == first
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert first != sources.engine_sha256(tmp_path) is not None
