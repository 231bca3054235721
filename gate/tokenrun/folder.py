"""4 One token run's folder, written part by part and sealed like any other run's; and read again.

plan.json run.json        what was going to be asked; where, when, on what
tokens/answers-*.parquet  one load of one arm each
tokens/forced-*.parquet   what the oracle said of the ids
tokens/decoded-*.parquet  ids of one arm with the log-probs of the steps that chose them
report.*                  derived again by `gate report`
complete.json             last
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gate.errors import StorageError
from gate.observe import ended, seals, store
from gate.observe.documents import read_json
from gate.observe.rows import Identity
from gate.observe.tokenrows import ForcedRow, SequenceRow
from gate.plan import document_hash
from gate.tokenrun.plan import TokenPlan


@dataclass(frozen=True, slots=True)
class TokenData:
    """Raw records only."""

    plan: TokenPlan
    run: store.RunFile
    finished_at: str | None
    unsealed: bool
    """As in RunData."""
    ended: str | None
    """Why it ended early, as it said itself."""
    answers: tuple[SequenceRow, ...]
    forced: tuple[ForcedRow, ...]
    decoded: tuple[ForcedRow, ...]
    """An arm's ids by its own log-probs, step by step: for tie-breaking alone."""
    identities: tuple[Identity, ...]


def is_token_run(folder: Path) -> bool:
    return read_json(folder / store.PLAN).get("flow") == "tokens" if (folder / store.PLAN).is_file() else False


def read(folder: Path) -> TokenData:
    """
    Raises:
        StorageError: not a token run's folder, a corrupt or changed file, or one of another version; one line.
    """
    path = folder / store.PLAN
    try:
        plan = TokenPlan.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise StorageError(f"{path} cannot be read: {first}", hint="it was written by another version") from error
    if document_hash(read_json(path)) != plan.plan_id:
        raise StorageError(f"{path} does not hash to its own plan_id", hint="it was edited")
    finished = seals.check_records(folder)
    return TokenData(
        plan=plan,
        run=store.read_run_file(folder),
        finished_at=None if finished is None else finished.finished_at,
        unsealed=finished is not None and finished.seal is None,
        ended=ended.why(folder),
        answers=store.parts(folder, "answers-", SequenceRow),
        forced=store.parts(folder, "forced-", ForcedRow),
        decoded=store.parts(folder, "decoded-", ForcedRow),
        identities=store.identities(folder),
    )
