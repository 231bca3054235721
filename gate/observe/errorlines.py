"""4 Lines of a server's log that report an error, among those written since a position in it."""

from __future__ import annotations

import re
from pathlib import Path

ERROR = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL)\b"  # logging levels of Python, uvicorn and vLLM, which write them in capitals
    r"|^Traceback \(most recent call last\)"
    r"|\bCUDA error\b|\bout of memory\b|\bSegmentation fault\b|\bcore dumped\b"
)
MOST_BYTES = 16 * 2**20
"""Read at most: a server that logs each token would fill memory."""
LINE_CHARS = 200


def position(log: Path) -> int:
    """Bytes in the log; 0 where there is none."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def since(log: Path, start: int) -> list[str]:
    """Error lines behind byte `start`, cut to 200 characters. A log that became shorter is read from its beginning."""
    try:
        with log.open("rb") as file:
            file.seek(start if start <= position(log) else 0)
            text = file.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return [line.strip()[:LINE_CHARS] for line in text.splitlines() if ERROR.search(line)]
