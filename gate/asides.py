"""The folders of `gate sweep`, `gate startup` and `gate profile`, which are no runs: shown, and derived again."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from gate.errors import StorageError
from gate.observe.kinds import REPORTS, kind_of
from gate.observe.rows import Row
from gate.observe.seals import check_shown
from gate.runs import no_report

R = TypeVar("R", bound=Row)


def show(folder: Path) -> None:
    """Print its table as it was reported. Raises StorageError where it has none."""
    kind = kind_of(folder)
    if kind == "sweep":
        from gate.sweep import text
        from gate.sweep.record import SweepReport

        text.show(_stored(folder, SweepReport), folder)
    elif kind == "profile":
        from gate.profile import conclude
        from gate.profile.rows import ProfileReport

        conclude.show(_stored(folder, ProfileReport), folder)
    else:
        from gate.startup import report
        from gate.startup.record import StartupReport

        report.show(_stored(folder, StartupReport), folder)


def derive(folder: Path) -> int:
    """Its report anew from the raw records, printed; the exit code of the command that measured."""
    from gate.observe.store import Store
    from gate.profile import conclude as profile
    from gate.startup import flow as startup
    from gate.sweep import flow as sweep

    place, kind = Store(folder), kind_of(folder)
    if kind == "profile":
        return profile.conclude(folder)
    return sweep.exit_code(sweep.conclude(place)) if kind == "sweep" else startup.conclude(place)


def _stored(folder: Path, model: type[R]) -> R:
    path = folder / REPORTS[kind_of(folder)]
    try:
        check_shown(folder)
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise no_report(folder) from error
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else _first(error)
        raise StorageError(
            f"{path} cannot be read: {reason}", hint=f"gate report {folder.name} writes it anew"
        ) from error


def _first(error: ValidationError) -> str:
    """`cells.0.name: Field required`: the rest of what pydantic says is many lines."""
    one = error.errors()[0]
    return ": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"])))
