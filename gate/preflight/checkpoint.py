"""3 The checkpoint: a whole folder with readable shards and the expected digest, from disk or from the hub."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gate.errors import CheckpointError
from gate.observe.rows import Finding
from gate.plan import Plan
from gate.preflight import hub
from gate.preflight.digest import digest
from gate.preflight.safetensors_header import tensor_names
from gate.recipe import ROOT, Checkpoint, Recipe

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
EXPANDED_FROM = "expanded_from.json"
"""Left by tools/expand_checkpoint.py in the oracle's copy: the digests of what it was made from, and of itself."""


@dataclass(frozen=True, slots=True)
class Folder:
    path: Path
    digest: str
    """gate/preflight/digest.py."""
    weight_bytes: int


def resolve(recipe: Recipe) -> tuple[Folder, Folder]:
    """(the checkpoint as shipped, the oracle's copy of it: the same folder unless the recipe names another).

    Raises CheckpointError: missing, half-downloaded, corrupt, another digest, or a copy made from something else.
    """
    wanted = recipe.checkpoint
    shipped = _from_hub(wanted) if wanted.hub is not None else _local(wanted.path or "", wanted)
    _expect(shipped, wanted.digest, wanted)
    if wanted.oracle_path is None:
        return shipped, shipped
    copy = _local(wanted.oracle_path, wanted)
    _expect(copy, wanted.oracle_digest, wanted)
    recorded = _read(copy.path / EXPANDED_FROM) or {}
    itself, made_from = recorded.get("copy_digest_sha256"), recorded.get("source_digest_sha256")
    if itself is not None and itself != (found := digest(copy.path, leave_out=frozenset({EXPANDED_FROM}))):
        raise CheckpointError(
            f"the oracle's copy {copy.path} changed after it was made: its digest is {found[:12]}…",
            expected=f"{str(itself)[:12]}…, as {EXPANDED_FROM} recorded",
            hint=_again(wanted, copy.path),
        )
    if made_from is not None and made_from != shipped.digest:
        # A pin that holds says which of the two is wrong; without one it may be either.
        wrong = (copy.path,) if wanted.digest is not None else (shipped.path, copy.path)
        raise CheckpointError(
            f"the oracle's copy {copy.path} was made from a checkpoint with digest {str(made_from)[:12]}…",
            expected=f"{shipped.digest[:12]}… of {shipped.path}",
            hint=_again(wanted, *wrong),
        )
    return shipped, copy


def check(plan: Plan, _out: Path) -> tuple[Finding, ...]:
    """Both folders still have the digests that the plan was made with; a run may be resumed days later."""
    shipped, copy = resolve(plan.recipe)
    for arm in (plan.candidate, plan.oracle):
        if arm.kind == "url":
            continue  # what an attached server has loaded cannot be known from here; the grid does not bind
        there = Path(arm.checkpoint).resolve()
        if there not in (shipped.path, copy.path):
            raise CheckpointError(
                f"the {arm.arm}'s checkpoint {arm.checkpoint} is not at {there}",
                expected=str(copy.path if arm.arm == "oracle" else shipped.path),
                hint="resume from the folder in which the run was started",
            )
        now = shipped.digest if there == shipped.path else copy.digest
        if now != arm.checkpoint_digest:
            raise CheckpointError(
                f"{arm.checkpoint} of the {arm.arm} changed: its digest is {now[:12]}",
                expected=f"{(arm.checkpoint_digest or 'none')[:12]}, as planned",
                hint="start a new run",
            )
    return ()


def verify(folder: Path) -> int:
    """Bytes of weights in a checkpoint folder that is whole.

    Raises CheckpointError: no configuration or tokenizer, a shard of the index missing, truncated or corrupt, a tensor
    in no shard or in two.
    """
    for name in ("config.json", "tokenizer.json"):
        if _read(folder / name) is None:
            raise CheckpointError(f"{folder} has no readable {name}", hint="download or copy the checkpoint again")
    index = _read(folder / INDEX)
    if index is None and not (folder / SINGLE).is_file():
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        raise CheckpointError(
            f"{folder} has {'only pickled weights' if pickled else 'no weights'}",
            expected=f"{INDEX} or {SINGLE}",
            hint="weights are loaded from safetensors alone" if pickled else "download or copy the checkpoint again",
        )
    weight_map = dict.fromkeys(tensor_names(folder / SINGLE), SINGLE) if index is None else index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / INDEX} has no weight_map", hint="download or copy this file again")
    shards = sorted({str(shard) for shard in weight_map.values()})
    if outside := [shard for shard in shards if Path(shard).name != shard]:
        raise CheckpointError(
            f"{folder / INDEX} names a shard {outside[0]!r}", expected="file names in the same folder"
        )
    if missing := [shard for shard in shards if not (folder / shard).is_file()]:
        raise CheckpointError(
            f"{folder} is half-downloaded: {len(missing)} of {len(shards)} shards are missing, first {missing[0]}",
            hint="download or copy the checkpoint again",
        )
    for shard in shards:
        listed = {name for name, where in weight_map.items() if where == shard}
        held = tensor_names(folder / shard)
        if strays := sorted(listed ^ held):
            state = "is not in it" if strays[0] in listed else "is in it too"
            raise CheckpointError(
                f"{folder / shard} does not match the index: {strays[0]} {state} ({len(strays)} such tensors)",
                expected="every tensor once, where the index says",
                hint="the files are of different downloads: get them again",
            )
    return sum((folder / shard).stat().st_size for shard in shards)


def _local(path: str, wanted: Checkpoint) -> Folder:
    folder = _at(path)
    if not folder.is_dir():
        how = f"make it with: {wanted.make}" if wanted.make else "correct the path in the recipe"
        raise CheckpointError(f"no checkpoint at {folder}", hint=how)
    try:
        return _folder(folder)
    except CheckpointError as error:
        if wanted.make is None:
            raise
        raise CheckpointError(error.found, expected=error.expected, hint=_again(wanted, folder)) from error


def absent(recipe: Recipe) -> tuple[str, str] | None:
    """What is not on this disk yet, and what will bring it; None where `resolve` has all, or says what is wrong.

    A local folder that no command makes is not awaited: its path is wrong.
    """
    wanted = recipe.checkpoint
    if wanted.hub is not None and isinstance(found := _in_cache(wanted), str):
        return found, "gate run has fetched it"
    for path in (wanted.path, wanted.oracle_path) if wanted.make is not None else ():
        if path is not None and not _at(path).is_dir():
            return f"no checkpoint at {_at(path)}", f"it is made, with: {wanted.make}"
    return None


def unread(recipe: Recipe) -> tuple[Folder, Folder]:
    """As `resolve`, but for what only the folders tell: where they will be, or the hub's name for them."""
    wanted = recipe.checkpoint
    shipped = Path(wanted.hub) if wanted.hub is not None else _at(wanted.path or "")
    copy = shipped if wanted.oracle_path is None else _at(wanted.oracle_path)
    return Folder(shipped, "", 0), Folder(copy, "", 0)


def _at(path: str) -> Path:
    return (ROOT / path).resolve()


def _from_hub(wanted: Checkpoint) -> Folder:
    found = _in_cache(wanted)
    return found if isinstance(found, Folder) else _folder(hub.download(wanted.hub or "", wanted.revision or "", found))


def _in_cache(wanted: Checkpoint) -> Folder | str:
    """Of the hub's local cache; where it is not there whole, why not."""
    repo = wanted.hub or ""
    folder = hub.cached(repo, wanted.revision or "")
    if folder is None:
        return f"{repo} is not in the local cache"
    try:
        return _folder(folder)
    except CheckpointError as error:
        return f"{repo} is not whole in the local cache ({error.found})"


def _folder(folder: Path) -> Folder:
    weight_bytes = verify(folder)
    return Folder(folder, digest(folder), weight_bytes)


def _expect(folder: Folder, pinned: str | None, wanted: Checkpoint) -> None:
    if pinned is not None and pinned != folder.digest:
        hint = f"it was changed, or is another checkpoint: {_again(wanted, folder.path)}"
        raise CheckpointError(f"{folder.path} has digest {folder.digest}", expected=pinned, hint=hint)


def _again(wanted: Checkpoint, *folders: Path) -> str:
    """What replaces these folders. A tool like make takes a folder that is there for done, so they must go first."""
    names = " and ".join(map(str, folders))
    return f"remove {names}, then: {wanted.make}" if wanted.make else f"make or copy {names} again"


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON table; None when the file is missing or is not one."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
