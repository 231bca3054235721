"""3 Fetch a checkpoint from the Hugging Face hub at a pinned revision: resumable, never a branch, or say why not."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from gate.errors import CheckpointError, StorageError
from gate.recipe import REVISION

FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
"""What a text server reads. Pickled weights and code are never fetched."""
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
HEADROOM = 1.02


def cached(repo: str, revision: str) -> Path | None:
    """The snapshot folder of exactly this revision in the local cache, whole or not; None when there is none."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    _check_revision(repo, revision)
    try:
        folder = Path(snapshot_download(repo, revision=revision, local_files_only=True, allow_patterns=list(FILES)))
    except LocalEntryNotFoundError:
        return None
    return folder if folder.name == revision else None


def download(repo: str, revision: str, why: str) -> Path:
    """Download what is missing of the snapshot, going on where an earlier download stopped.

    why: what the cache lacks; opens the error when there is no network.
    Errors: CheckpointError (offline, no such repository or revision, no access), StorageError (not enough disk).
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    _check_revision(repo, revision)
    if setting := offline():
        raise CheckpointError(
            f"{why}, and {setting} forbids the network",
            expected=f"{repo} at {revision}",
            hint=f"unset {setting}, or copy the snapshot into the Hugging Face cache",
        )
    try:
        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
        need = sum(file.size or 0 for file in info.siblings or [])
        _check_disk(need)
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=list(FILES)))
    except GatedRepoError as error:
        raise CheckpointError(f"{repo} is gated", hint="accept its terms on the hub and set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{repo} has no revision {revision}", hint="correct the recipe") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(f"the hub has no {repo}", hint="correct the recipe, or set HF_TOKEN") from error
    except (HfHubHTTPError, _transport_error(), OSError) as error:
        raise CheckpointError(
            f"{why}, and the hub cannot be reached ({_first_line(error)})",
            expected=f"{repo} at {revision}",
            hint="run again: the download goes on where it stopped",
        ) from error
    if folder.name != revision:
        raise CheckpointError(f"the hub delivered {folder.name} of {repo}", expected=revision)
    return folder


def offline() -> str | None:
    """The variable that forbids the network, if one is set."""
    for name in OFFLINE_VARIABLES:
        if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE"):
            return name
    return None


def _check_revision(repo: str, revision: str) -> None:
    if not re.fullmatch(REVISION, revision):
        raise CheckpointError(f"{repo} at {revision!r}", expected="40 hex digits", hint="a branch name can move")


def _check_disk(need_bytes: int) -> None:
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if free < need_bytes * HEADROOM:
        raise StorageError(
            f"{free / 1e9:.1f} GB free in {cache}", expected=f"{need_bytes / 1e9:.1f} GB", hint="set HF_HOME elsewhere"
        )


def _transport_error() -> type[Exception]:
    """Base error of whichever HTTP library the installed hub client is built on; it changed between releases."""
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
