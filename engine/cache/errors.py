"""PoolError: cache bookkeeping was used wrongly. Always a bug in the caller, never a full pool."""

from __future__ import annotations


class PoolError(RuntimeError):
    """Double free, foreign id, second assignment, or a slot released while a step still uses it.

    It is raised instead of repaired because the alternative, carrying on, lets two requests share memory and turns a
    bookkeeping mistake into wrong tokens under load, where it is hardest to see.
    """
