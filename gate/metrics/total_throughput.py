"""Total throughput of a leg.

    total_throughput = Σ (prompt_tokens + completion_tokens) / T        tok/s

T and the treatment of missing values as in output_throughput.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from gate.metrics.output_throughput import duration_s
from gate.observe.rows import RequestRow


def total_throughput(requests: Sequence[RequestRow]) -> float | None:
    duration = duration_s(requests)
    tokens = [
        r.prompt_tokens + r.completion_tokens
        for r in requests
        if r.prompt_tokens is not None and r.completion_tokens is not None
    ]
    if duration is None or len(tokens) < len(requests):
        return None
    return sum(tokens) / duration
