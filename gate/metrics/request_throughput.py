"""Request throughput of a leg.

    request_throughput = N / T        req/s

N is the number of requests of the leg; T as in output_throughput.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from gate.metrics.output_throughput import duration_s
from gate.observe.rows import RequestRow


def request_throughput(requests: Sequence[RequestRow]) -> float | None:
    duration = duration_s(requests)
    return None if duration is None else len(requests) / duration
