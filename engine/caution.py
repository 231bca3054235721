"""Caution: what steps may hold after one has run out of memory, and which request is to blame in the end.

The allocator's cache is freed each time, so the first failure changes nothing: the requests of the step are recomputed
and go on. From the second on:

* Every request of the step is a suspect and recomputes alone, one after another, until it has sampled a token. One that
  fails alone gets smaller chunks; one that fails alone, twice, with a single token is to blame, and ends.
* Where all of them ran alone and fail together, smaller chunks come first, then half as many requests, the oldest.

Each failure narrows a limit, clears or ends a suspect, and only a request that ends widens a limit again. So between
two requests that end there are a few failures at most, and no more is recomputed than those cost. Rejected: to widen
after some time; a recomputation longer than that would never come to its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.batch import Segment

SHRINK = 4
"""A chunk of 16,384 tokens is one token after seven failures, each of which costs the time of a step."""
FEW = 8
"""Tokens for each request of a step, below which its size is due to their number and not to a chunk."""


class Caution:
    """`tokens`, `sequences`: the limits now, at most the configured ones. Requests go by their id."""

    def __init__(self, max_tokens: int, max_sequences: int) -> None:
        self._most = max_tokens, max_sequences
        self.suspects: set[str] = set()
        """They run alone before anything else does."""
        self.tokens, self.sequences = self._most
        self._failures = 0
        self._proven: set[str] = set()
        """They ran alone since the first failure."""
        self._last_chance: str | None = None
        """Failed alone with a single token."""

    def failed(self, tokens: int, requests: Sequence[str]) -> str | None:
        """A step of so many tokens of these requests has failed; the request that must end, or None."""
        self._failures += 1
        if self._failures == 1:
            return None
        if len(requests) == 1 and tokens == 1:
            (name,) = requests
            if self._last_chance == name:
                return name
            self._last_chance = name
        elif len(requests) == 1:
            self.tokens = max(1, tokens // SHRINK)
        elif not self._proven.issuperset(requests):
            self.suspects.update(requests)
        elif tokens >= FEW * len(requests):
            self.tokens = tokens // SHRINK
        else:
            self.sequences = len(requests) // 2
        return None

    def passed(self, segments: Sequence[Segment]) -> None:
        """A step went well."""
        if self._failures and len(segments) == 1 and segments[0].sample:
            self._proven.add(segments[0].request_id)
            self.suspects.discard(segments[0].request_id)

    def ended(self, request: str, *, blamed: bool, left: int) -> None:
        """A request is over, `left` are alive. With the one to blame the reason for all limits is gone."""
        self.suspects.discard(request)
        self._proven.discard(request)
        most_tokens, most_sequences = self._most
        if blamed or not left:
            self.tokens, self.sequences = self._most
        else:
            self.tokens = min(most_tokens, SHRINK * self.tokens)
            self.sequences = min(most_sequences, 2 * self.sequences)
        if not self.suspects and (self.tokens, self.sequences) == self._most:
            self._failures, self._last_chance = 0, None
            self._proven.clear()
