"""The only place where numbers become text. What was not measured is a dash, never a zero."""

from __future__ import annotations

from decimal import ROUND_DOWN, Decimal

GIB = 2**30
GB = 10**9
DASH = "–"


def number(value: float | None, digits: int = 4) -> str:
    """Significant digits without an exponent: 1234.5, 12.35, 0.01235."""
    if value is None:
        return DASH
    if value == 0:
        return "0"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    if whole:
        return f"{value:.{max(digits - whole, 0)}f}"
    text = f"{value:.{digits}g}"
    return f"{value:.12f}".rstrip("0") if "e" in text else text


def ratio(value: float | None) -> str:
    """Three decimals: a ratio's third decimal is already below every band."""
    return DASH if value is None else f"{value:.3f}"


def least(value: float, digits: int = 3, sign: str = "") -> str:
    """A lower bound, rounded towards zero: no more is said than was found. sign "+": a gain has one too.

    In decimals, as the shortest that is this float: 1.001 × 1000 is below 1001.
    """
    step = Decimal(1).scaleb(-digits)
    return f"{Decimal(repr(float(value))).quantize(step, ROUND_DOWN):{sign}f}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share as text: 0.052 is 5.2 %."""
    return DASH if share is None else f"{100 * share:.{digits}f} %"


def duration(seconds: float | None) -> str:
    """1 h 02 m, 3 m 05 s, 12 s, 0.4 s."""
    if seconds is None:
        return DASH
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} m"
    return f"{minutes} m {rest:02d} s" if minutes else f"{rest} s"


def counted(count: int, one: str) -> str:
    """1 repetition, 3 repetitions: of words whose plural ends in s."""
    return f"{count} {one}" if count == 1 else f"{count} {one}s"


def gib(size_bytes: int | None) -> str:
    """Bytes in GiB (2^30)."""
    return DASH if size_bytes is None else f"{size_bytes / GIB:.2f} GiB"
