"""1 A checkpoint by folder or by hub id, on this machine alone: nothing is downloaded for a question about sizes."""

from __future__ import annotations

import re
from pathlib import Path

from gate import recipe as recipes
from gate.errors import CheckpointError, UsageError
from gate.preflight import hub
from gate.recipe import ROOT, Recipe

HUB_ID = re.compile(r"([a-zA-Z0-9][\w.-]{0,95}/[a-zA-Z0-9][\w.-]{0,95})(?:@([0-9a-f]{40}))?", re.ASCII)
"""nvidia/Qwen3.6-27B-NVFP4, or the same @ a revision. `../x` is a folder that is not there."""


def find(name: str) -> Path:
    """Folder of a checkpoint: a path, or a hub id in the local cache, `@` a revision of 40 hex digits if need be.

    Without a revision: the one that a recipe pins, else the branch main as it was downloaded, else the only snapshot.
    Raises UsageError (neither path nor id), CheckpointError (not in the cache, or several snapshots).
    """
    try:
        if name and (folder := Path(name)).is_dir():
            return folder
    except OSError as error:
        raise UsageError(f"{name:.200} cannot be read: {error.strerror}", expected="a folder, or a hub id") from error
    matched = HUB_ID.fullmatch(name)
    if matched is None:
        raise UsageError(
            f"no checkpoint {name[:200]!r}",
            expected="a folder, or a hub id such as nvidia/Qwen3.6-27B-NVFP4 or ID@REVISION",
            hint="correct the name",
        )
    repo, revision = matched.groups()
    return _cached(repo, revision or _pinned(repo))


def of_recipe(recipe: Recipe) -> Path:
    """The checkpoint that a recipe names, as shipped. Raises CheckpointError where it is not on this machine."""
    wanted = recipe.checkpoint
    if wanted.hub is not None:
        return _cached(wanted.hub, wanted.revision)
    folder = ROOT / (wanted.path or "")
    if not folder.is_dir():
        how = f"make it with: {wanted.make}" if wanted.make else "correct the path in the recipe"
        raise CheckpointError(f"no checkpoint at {folder}", hint=how)
    return folder


def _pinned(repo: str) -> str | None:
    for name in recipes.names():
        checkpoint = recipes.load(name).checkpoint
        if checkpoint.hub == repo:
            return checkpoint.revision
    return None


def _cached(repo: str, revision: str | None) -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    hint = f"hf download {repo}" + (f" --revision {revision}" if revision else "")
    if revision is not None:
        folder = hub.cached(repo, revision)
        if folder is None:
            raise CheckpointError(f"{repo} at {revision} is not in the local cache {HF_HUB_CACHE}", hint=hint)
        return folder
    place = Path(HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    main = place / "refs" / "main"
    snapshots = sorted(path for path in (place / "snapshots").glob("*") if path.is_dir())
    if main.is_file() and (named := place / "snapshots" / main.read_text(errors="replace").strip()) in snapshots:
        return named
    if len(snapshots) == 1:
        return snapshots[0]
    if snapshots:
        known = ", ".join(path.name for path in snapshots)
        raise CheckpointError(f"{len(snapshots)} snapshots of {repo} in {place}", expected=f"{repo}@ one of {known}")
    raise CheckpointError(f"{repo} is not in the local cache {HF_HUB_CACHE}", hint=hint)
