"""4 The OpenAI completions protocol: a prompt -> request bytes, a recorded leg -> request rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import orjson

from gate.client.stream import Stream, error_message, read_stream
from gate.observe.rows import RequestRow
from gate.plan import PlannedLeg
from gate.units import counted
from gate.workload import Prompt

if TYPE_CHECKING:
    from gate.client.drive import LegRecording, LoadSpec, RawResponse

PATH = "/v1/completions"
MAX_ERROR_CHARS = 200


def body(model: str, token_ids: Sequence[int], output_tokens: int) -> bytes:
    """Request body: greedy, exactly `output_tokens`, streamed, with usage and token ids. The same for both arms."""
    return orjson.dumps(
        {
            "model": model,
            "prompt": list(token_ids),
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
    )


def to_rows(recording: LegRecording, spec: LoadSpec, leg: PlannedLeg) -> tuple[RequestRow, ...]:
    """One row per planned prompt, in prompt order. A failed request has `error`, and whatever came before it."""
    return tuple(
        to_row(response, spec.prompts[response.index], spec.output_tokens, leg) for response in recording.responses
    )


def lead_in_errors(recording: LegRecording, spec: LoadSpec, leg: PlannedLeg) -> tuple[str | None, ...]:
    """Why requests of the lead-in failed, in the order of their ends; None for one that did not."""
    return tuple(to_row(one, *spec.lead_in[one.index], leg).error for one in recording.lead_in)


def to_row(response: RawResponse, prompt: Prompt, output_tokens: int, leg: PlannedLeg) -> RequestRow:
    stream = read_stream(response.chunks) if response.status == 200 else Stream()
    times = stream.token_times_ns
    return RequestRow(
        leg_id=leg.leg_id,
        arm=leg.arm,
        concurrency=leg.concurrency,
        repetition=leg.repetition,
        index=response.index,
        prompt_sha256=prompt.sha256,
        expected_prompt_tokens=len(prompt.token_ids),
        expected_output_tokens=output_tokens,
        scheduled_ns=response.scheduled_ns,
        sent_ns=response.sent_ns,
        first_token_ns=times[0] if times else None,
        last_token_ns=times[-1] if times else None,
        end_ns=response.end_ns,
        token_times_ns=tuple(times),
        tokens_per_event=stream.tokens_per_event,
        prompt_tokens=stream.prompt_tokens,
        completion_tokens=stream.completion_tokens,
        cached_prompt_tokens=stream.cached_prompt_tokens,
        token_ids=stream.token_ids,
        finish_reason=stream.finish_reason,
        http_status=response.status,
        saw_done=stream.saw_done,
        error=_error(response, stream, prompt),
    )


def _error(response: RawResponse, stream: Stream, prompt: Prompt) -> str | None:
    """The first cause: connection, HTTP status, content type, stream, prompt."""
    if response.error is not None:
        tokens = len(stream.token_times_ns)
        return f"{response.error} after {counted(tokens, 'token event')}" if tokens else response.error
    if response.status != 200:
        return f"HTTP {response.status}: {_body_text(response)}"
    if not stream.events and not (response.content_type or "").startswith("text/event-stream"):
        return f"answer is {response.content_type or 'of no type'}, not an event stream: {_body_text(response)}"
    if stream.error is not None:
        return stream.error
    echoed = stream.prompt_token_ids
    if echoed is not None and tuple(echoed) != prompt.token_ids:
        return f"server read another prompt: {len(echoed)} ids, {len(prompt.token_ids)} were sent, contents differ"
    return None


def _body_text(response: RawResponse) -> str:
    raw = b"".join(read for _, read in response.chunks)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = None
    message = None
    if isinstance(value, dict):
        message = error_message(value) or value.get("message") or value.get("detail")
    text = str(message) if message else raw.decode("utf-8", "replace")
    return " ".join(text.split())[:MAX_ERROR_CHARS] or "empty body"
