"""1 Amounts of memory: always with their unit, GB (10^9 bytes) or GiB (2^30), and one unit for a whole table."""

from __future__ import annotations

import re
from typing import Literal

from gate.errors import UsageError
from gate.units import DASH, GB, GIB

Unit = Literal["GB", "GiB"]
UNITS = {"MB": 10**6, "GB": GB, "TB": 10**12, "MiB": 2**20, "GiB": GIB, "TiB": 2**40}
AMOUNT = re.compile(r"(\d{1,15}(?:\.\d{1,12})?) ?([KMGT]i?B)")


def parse(text: str, option: str) -> int:
    """ "24GiB" -> 25769803776. Raises UsageError: no number, no unit, or one that does not say whether 1000 or 1024."""
    matched = AMOUNT.fullmatch(text.strip())
    if matched is None or matched[2] not in UNITS:
        raise UsageError(
            f"{option} {text!r}",
            expected="a number with GB (10^9 bytes) or GiB (2^30 bytes), such as 24GiB",
            hint="nvidia-smi's MiB are 2^20 bytes",
        )
    whole, _, fraction = matched[1].partition(".")
    scale = int("1" + "0" * len(fraction))
    # In integers: a float would lose bytes of a number that somebody typed exactly.
    return (int(whole) * scale + int(fraction or 0)) * UNITS[matched[2]] // scale


def unit_of(text: str | None) -> Unit:
    """The unit that the answer is told in: that of the question, GiB where it named none."""
    return "GB" if text is not None and not text.strip().endswith("iB") else "GiB"


def shown(size_bytes: int | None, unit: Unit, digits: int = 2) -> str:
    """Without the unit, which stands in the table's head."""
    return DASH if size_bytes is None else f"{size_bytes / UNITS[unit]:.{digits}f}"


def digits_for(size_bytes: int, unit: Unit) -> int:
    """Decimals of a table whose sizes are like this one: two, and five where two would leave nothing of it."""
    return 2 if size_bytes >= UNITS[unit] else 5
