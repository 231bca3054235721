"""4 A coroutine on an event loop of its own. An interrupt cancels it, and finds the loop whole or not there.

asyncio.run was rejected: an interrupt while it makes or closes its loop leaves half of one behind, whose finaliser
fails aloud, and a coroutine that nobody awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from gate.interrupt import deferred

T = TypeVar("T")


def run(
    main: Callable[[], Coroutine[Any, Any, T]], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> T:
    """What it returns; for a thread without an event loop. Raises KeyboardInterrupt when the coroutine has ended."""
    runner, coroutine = asyncio.Runner(loop_factory=loop_factory), main()
    try:
        with deferred():
            runner.get_loop()
        return runner.run(coroutine)
    finally:
        with deferred():
            runner.close()
            coroutine.close()  # one that ended is closed already, one that never began says nothing of it
