"""4 Any command line as an arm: {model}, {port} and {host} are filled in; no shell reads it."""

from __future__ import annotations

import difflib
import os
import shlex
import shutil
import string

from gate.arm import HOST, KINDS, Seat
from gate.errors import UsageError
from gate.plan import ArmPlan


def plan(command: str, seat: Seat) -> ArmPlan:
    """Split first and fill in afterwards, so that a folder name with a space stays one argument."""
    known = {"model": seat.checkpoint, "port": str(seat.port), "host": HOST}
    try:
        words = shlex.split(command)
        holes = [hole for word in words for hole in string.Formatter().parse(word) if hole[1] is not None]
    except ValueError as error:
        raise UsageError(f"cannot split command {command!r}: {error}", hint="close the quote or brace") from error
    # Formats and conversions are refused: no argument needs one, and "{port:999999999999}" would fill the memory.
    fields = [f"{name}{'!' * bool(how)}{how or ''}{':' * bool(form)}{form}" for _, name, form, how in holes]
    unknown = [field for field in fields if field not in known]
    if not words or unknown:
        found = f"unknown placeholder {{{unknown[0]}}}" if unknown else "an empty command"
        raise UsageError(f"{found} for the {seat.arm}", expected="{model}, {port}, {host}; a literal brace is doubled")
    if "port" not in fields:
        raise UsageError(
            f"the {seat.arm}'s command {command!r} has no {{port}}",
            expected=f"{', '.join(KINDS)}, COMMAND … {{port}} …, or an http:// URL",
            hint=f"did you mean {near}?" if (near := _nearest(words, seat)) else "",
        )
    argv = tuple(word.format_map(known) for word in (*words, *seat.args))
    return ArmPlan(
        arm=seat.arm,
        kind="command",
        argv=argv,
        env=seat.env,
        url=seat.url,
        model="",
        checkpoint=seat.checkpoint,
        checkpoint_digest=seat.digest,
    )


def _nearest(words: list[str], seat: Seat) -> str | None:
    """The kind that a single word is nearest to, unless it is a path or a program: that is a command, and meant."""
    if len(words) > 1 or os.sep in words[0] or shutil.which(words[0], path=seat.env.get("PATH", os.defpath)):
        return None
    return next(iter(difflib.get_close_matches(words[0].lower(), KINDS, 1, cutoff=0.7)), None)
