"""Log-probabilities in OpenAI's two schemas and in vLLM's for prompts; JSON has no infinity, so -inf is -9999.0."""

from __future__ import annotations

from collections.abc import Sequence

from engine.batch import TokenLogprobs
from engine.server.tokenizer import Tokenizer

LEAST = -9999.0
"""What vLLM writes for -inf."""


class Namer:
    """Token ids to the names that logprobs show."""

    def __init__(self, tokenizer: Tokenizer | None, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids or tokenizer is None

    def text(self, token_id: int) -> str:
        if self._as_ids or self._tokenizer is None:
            return f"token_id:{token_id}"
        return self._tokenizer.token_text(token_id)

    def bytes(self, token_id: int) -> list[int] | None:
        """None without a tokenizer."""
        return None if self._tokenizer is None else list(self._tokenizer.token_bytes(token_id))


def completion(
    entries: Sequence[TokenLogprobs | None], prompt_ids: Sequence[int], namer: Namer, offset: int
) -> tuple[dict[str, object], int]:
    """({text_offset, token_logprobs, tokens, top_logprobs}, the next offset). A None entry is the sequence's first
    token, which nothing predicts; its id comes from `prompt_ids`. Tokens of equal text share one key of a
    top_logprobs object, which then shows the more probable: return_tokens_as_token_ids keeps them apart."""
    tokens: list[str] = []
    offsets: list[int] = []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    for position, entry in enumerate(entries):
        name = namer.text(prompt_ids[position] if entry is None else entry.token_id)
        tokens.append(name)
        offsets.append(offset)
        offset += len(name)
        if entry is None:
            values.append(None)
            tops.append(None)
            continue
        values.append(finite(entry.logprob))
        top = {name: finite(entry.logprob)}  # itself first, as in vLLM, whatever its rank
        for token_id, logprob in entry.top:
            key = namer.text(token_id)
            top[key] = max(finite(logprob), top.get(key, LEAST))
        tops.append(top)
    return {"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": tops}, offset


def chat(entries: Sequence[TokenLogprobs], namer: Namer) -> dict[str, object]:
    """{"content": [{token, logprob, bytes, top_logprobs}]}."""

    def one(token_id: int, logprob: float) -> dict[str, object]:
        return {"token": namer.text(token_id), "logprob": finite(logprob), "bytes": namer.bytes(token_id)}

    return {
        "content": [
            {**one(entry.token_id, entry.logprob), "top_logprobs": [one(i, value) for i, value in entry.top]}
            for entry in entries
        ]
    }


def prompt(entries: Sequence[TokenLogprobs | None], namer: Namer) -> list[dict[str, object] | None]:
    """vLLM's prompt_logprobs: per prompt token {"id": {logprob, rank, decoded_token}}, null for the first."""
    rows: list[dict[str, object] | None] = []
    for entry in entries:
        if entry is None:
            rows.append(None)
            continue
        ranked = [(entry.token_id, entry.logprob, entry.rank)]
        ranked += [(i, value, rank) for rank, (i, value) in enumerate(entry.top, 1) if i != entry.token_id]
        rows.append(
            {
                str(i): {"logprob": finite(value), "rank": rank, "decoded_token": namer.text(i)}
                for i, value, rank in ranked
            }
        )
    return rows


def finite(logprob: float) -> float:
    return max(logprob, LEAST)
