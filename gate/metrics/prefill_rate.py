"""Prefill rate of one request: llama-bench's pp, over HTTP.

    prefill_rate = prompt_tokens / (first_token_ns − sent_ns) × 10^9          tok/s

The request asks for one token, so the time is that of reading the prompt, of one sampled token and of the way there and
back. llama-bench times the first alone, in process: its figures are higher, most of all for short prompts.
"""

from __future__ import annotations

from gate.observe.rows import RequestRow

NS_PER_S = 1_000_000_000


def prefill_rate(request: RequestRow) -> float | None:
    """None without a token, or without usage."""
    if request.first_token_ns is None or request.prompt_tokens is None or request.first_token_ns <= request.sent_ns:
        return None
    return request.prompt_tokens / (request.first_token_ns - request.sent_ns) * NS_PER_S
