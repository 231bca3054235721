"""4 What the fake server does, as data: a frozen Script, from TOML or by preset name. Its defaults are a good one."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from gate.errors import UsageError
from gate.recipe import Table

Fault = Literal[
    "none",
    "error-event",  # an error object in the stream, then [DONE]
    "drop",  # the connection is reset in the stream
    "no-done",  # the stream ends in good order, but without [DONE]
    "hang",  # the stream stops and the connection stays
    "garbage",  # bytes that are no event stream
    "http-500",
    "not-a-stream",  # 200 with a JSON body
    "no-answer",  # the request is read and never answered
]


class Script(Table):
    # identity
    flavour: Literal["vllm", "engine"] = "vllm"
    """Prefix of the metric names and shape of /version."""
    model: str = "fake"
    version: str = "0.25.0"
    max_model_len: int = 4096
    kv_cache_dtype: str = "auto"
    prefix_caching: bool = False
    """Reported as on, and every prompt token after the first request counts as a hit."""

    # tokens: a hash of the whole context, so that two fakes agree and a margin query agrees with the stream
    vocab_size: int = Field(1000, ge=2)
    salt: int = 0
    """Another salt is another model."""
    diverge_at: int | None = None
    """Position of the first token that differs from a server without this."""
    output_limit: int | None = None
    """Stop here with finish_reason "stop", whatever was asked."""
    offsets: tuple[tuple[int, int], ...] = ()
    """(position, added to the id there): more differences, and larger ones, than diverge_at makes."""
    flaky_at: int | None = None
    """Position at which every second answer to a prompt has another id: a server that disagrees with itself."""
    foreign_from_running: int | None = None
    """Streams that start while so many run, themselves included, answer the request before theirs: shared state."""
    margin_nats: float = 0.05
    """logprobs and prompt_logprobs: log-prob of the first choice minus that of the next id."""
    decided_nats: float | None = None
    """The same for the ids after that one; None: margin_nats too. The 20 ids from the first choice up are the top."""
    prompt_logprobs: Literal["good", "missing", "short", "nan", "null", "other-ids"] = "good"
    """What is returned where they are asked for: as asked, none, one row too few, NaN, null, or those of other ids."""

    # pace
    prefill_ms: float = 0.0
    prefill_us_per_token: float = 0.0
    token_ms: float = 1.0
    slow_down: float = 1.0
    """Factor on all delays."""
    slow_down_per_stream: float = 0.0
    """Added to the factor for every other stream that runs."""

    slots: int | None = None
    """Streams that run at once; the others wait in line before their prefill."""

    # stream shape
    role_first: bool = False
    """Open with an event that carries no token: role-only for chat, empty text for completions."""
    tokens_per_event: tuple[int, ...] = (1,)
    """Cycled."""
    one_write: bool = False
    newline: Literal["lf", "crlf", "cr"] = "lf"
    space_after_colon: bool = True
    comment: str | None = None
    """Sent as a comment line before each event."""
    cut_bytes: int | None = None
    """Write the body in pieces of this many bytes: cuts inside `data:` and inside characters."""
    chunked: bool = True
    """False: no transfer coding, the body ends where the connection does."""
    token_ids: bool = True
    """Return token ids where asked."""
    channel: Literal["content", "reasoning", "reasoning_content"] = "content"
    """Chat: where the first token goes; the others are content."""

    # usage
    usage: Literal["final", "last-choice", "continuous", "early", "late", "twice", "missing"] = "final"
    prompt_tokens_offset: int = 0
    completion_tokens_offset: int = 0

    # faults
    fault: Fault = "none"
    fault_after_tokens: int = 0
    fault_first: int = 0
    """Index of the first request with the fault."""
    fault_count: int | None = None
    """How many requests have it; None: all from there."""

    # life
    unhealthy_s: float = 0.0
    """/health answers 503 for so long."""
    exit_after_requests: int | None = None
    """The process ends (code 1) when the next request comes."""
    restart_after_requests: int | None = None
    """Counters return to 0 and process_start_time_seconds moves, as after a restart."""
    identity_changes_after: int | None = None
    """From this request on /version says another version."""


PRESETS: dict[str, dict[str, object]] = {
    "good": {},
    "engine": {"flavour": "engine", "version": "0.1.0"},
    "instant": {"token_ms": 0.0},
    "slow": {"slow_down": 1.2},
    "role-first": {"role_first": True},
    "bundled": {"tokens_per_event": (4, 3, 3)},
    "one-write": {"one_write": True, "token_ms": 0.0},
    "crlf": {"newline": "crlf", "comment": "ping"},
    "cut": {"cut_bytes": 3, "token_ms": 0.0},
    "until-close": {"chunked": False},
    "no-ids": {"token_ids": False},
    "usage-missing": {"usage": "missing"},
    "usage-early": {"usage": "early"},
    "usage-late": {"usage": "late"},
    "usage-lies": {"completion_tokens_offset": 3},
    "wrong-prompt": {"prompt_tokens_offset": 27},
    "short": {"output_limit": 5},
    "diverge": {"diverge_at": 3},
    "decided": {"margin_nats": 2.0},
    "no-prompt-logprobs": {"prompt_logprobs": "missing"},
    "two-errors": {"offsets": [[2, 1], [5, 2]]},
    "one-near-tie": {"decided_nats": 3.0},
    "one-tie": {"margin_nats": 0.0, "decided_nats": 3.0},
    "outside-top": {"offsets": [[4, 40]]},
    "flaky": {"flaky_at": 4},
    "foreign-at-8": {"foreign_from_running": 8},
    "error-event": {"fault": "error-event", "fault_after_tokens": 3},
    "one-error": {"fault": "error-event", "fault_after_tokens": 3, "fault_first": 2, "fault_count": 1},
    "drop": {"fault": "drop", "fault_after_tokens": 3},
    "no-done": {"fault": "no-done"},
    "hang": {"fault": "hang", "fault_after_tokens": 3},
    "no-answer": {"fault": "no-answer"},
    "garbage": {"fault": "garbage"},
    "http-500": {"fault": "http-500"},
    "not-a-stream": {"fault": "not-a-stream"},
    "never-healthy": {"unhealthy_s": 1e9},
    "dies": {"exit_after_requests": 4},
    "restarts": {"restart_after_requests": 4},
    "changes-version": {"identity_changes_after": 4},
    "prefix-cache": {"prefix_caching": True},
}


def preset(name: str, **overrides: object) -> Script:
    """A named script, some fields changed. Raises UsageError for an unknown name."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        raise UsageError(
            f"no preset {name!r}", expected=", ".join(PRESETS), hint=f"did you mean {near[0]!r}?" if near else ""
        )
    return Script.model_validate({**PRESETS[name], **overrides}, strict=False)


def load(path: Path) -> Script:
    """A script from TOML. Raises UsageError."""
    try:
        return Script.model_validate(tomllib.loads(path.read_text(encoding="utf-8")), strict=False)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", expected="a TOML script") from error
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise UsageError(
            f"{path}: {' '.join(str(error).split())}", expected="fields of gate.arm.fake_script"
        ) from error
