"""/v1/completions: prompts in any of their four shapes, and the answer in text_completion's form."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import cast

import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from engine.batch import TokenLogprobs
from engine.request import Request, SamplingParams
from engine.server import logprobs
from engine.server.choice import Choice, Piece
from engine.server.errors import ApiError, error_object
from engine.server.forms import NULL, Frame, ids_json, new_id, value_json
from engine.server.http import EventStream, Gathered, collect, event, failure, read_body
from engine.server.protocol import CompletionBody, SamplingBody, parse
from engine.server.sampling import check_token_ids, sampling_params, stop_strings
from engine.server.service import Service
from engine.server.session import Session
from engine.server.text import NoText, StopStrings

ENCODE_IN_THREAD_CHARS = 4096
"""Longer texts are tokenised off the event loop, which carries every other stream's tokens meanwhile."""

Prompt = tuple[list[int], str | None]
"""Token ids, and the text they came from."""


async def completions(request: HttpRequest) -> Response:
    service: Service = request.app.state.service
    service.require()
    limits = service.config.server
    body = parse(CompletionBody, await read_body(request, limits.max_body_bytes))
    service.check_model(body.model)
    prompts = await _prompts(body, service)
    answer_id = new_id("cmpl")
    choices: list[Choice] = []
    for index, (ids, text) in enumerate(prompts):
        echo = None
        if body.echo:
            tokenizer = service.require_tokenizer("`echo`")
            echo = text if text is not None else tokenizer.decode(ids, skip_special_tokens=False)
        choices += make_choices(body, answer_id, index, ids, service, echo)
    session = Session(service, choices)
    session.submit()
    form = CompletionForm(body, answer_id, service, choices)
    return EventStream(session, form) if body.stream else await collect(session, form, request.receive)


def make_choices(
    body: CompletionBody, answer_id: str, prompt_index: int, ids: list[int], service: Service, echo: str | None
) -> list[Choice]:
    """n choices of one prompt. max_tokens 0 becomes one token that is thrown away: a prompt is run to sample."""
    _, info = service.require()
    params = sampling_params(body, len(ids), info, service.config.server)
    prompt_only = params.max_tokens == 0
    if body.echo and body.logprobs is not None and params.prompt_logprobs is None:
        params = dataclasses.replace(params, prompt_logprobs=body.logprobs)
    if prompt_only:
        params = dataclasses.replace(params, max_tokens=1)
    choices = [
        choice_for(body, f"{answer_id}-{prompt_index * body.n + k}", prompt_index * body.n + k, ids, p, service)
        for k, p in enumerate(per_choice(params, body.n))
    ]
    for choice in choices:
        choice.prompt_index, choice.prompt_only, choice.echo = prompt_index, prompt_only, echo
    return choices


def per_choice(params: SamplingParams, n: int) -> list[SamplingParams]:
    """With one seed n choices would be n copies, so each takes the next, within 64 bits."""
    if params.seed is None:
        return [params] * n
    return [dataclasses.replace(params, seed=(params.seed + k + 2**63) % 2**64 - 2**63) for k in range(n)]


def choice_for(
    body: SamplingBody, request_id: str, index: int, ids: list[int], params: SamplingParams, service: Service
) -> Choice:
    _, info = service.require()
    stops = stop_strings(body)
    if stops:
        service.require_tokenizer("`stop`")
    tokenizer = service.tokenizer
    return Choice(
        index=index,
        request=Request(id=request_id, prompt_ids=tuple(ids), params=params, eos_ids=info.eos_ids),
        detokenizer=tokenizer.detokenizer(skip_special_tokens=body.skip_special_tokens) if tokenizer else NoText(),
        stops=StopStrings(stops, include=body.include_stop_str_in_output) if stops else None,
        include_stop=body.include_stop_str_in_output,
    )


async def _prompts(body: CompletionBody, service: Service) -> list[Prompt]:
    """Raises ApiError 400 for an empty prompt, an id outside the vocabulary, or more prompts than allowed."""
    _, info = service.require()
    prompt = body.prompt
    if not prompt:
        raise ApiError("`prompt` is empty; send at least one token", param="prompt", code="empty_prompt")
    many: Sequence[str | int | list[int]] = [prompt] if isinstance(prompt, str) else prompt
    if isinstance(many[0], int):
        many = [cast("list[int]", prompt)]
    if len(many) > service.config.server.max_prompts:
        raise ApiError(
            f"`prompt` is a list of {len(many)}; this server allows {service.config.server.max_prompts}",
            param="prompt",
            code="limit_exceeded",
        )
    prompts: list[Prompt] = []
    for one in many:
        if isinstance(one, str):
            prompts.append((await encode(service, one, add_special_tokens=body.add_special_tokens), one))
        else:
            ids = cast("list[int]", one)
            check_token_ids("prompt", ids, info.vocab_size)
            prompts.append((ids, None))
    return prompts


async def encode(service: Service, text: str, *, add_special_tokens: bool) -> list[int]:
    tokenizer = service.require_tokenizer("a text prompt")
    if len(text) < ENCODE_IN_THREAD_CHARS:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=add_special_tokens)


class CompletionForm:
    """text_completion objects; token ids where return_token_ids asks for them, shaped as vLLM's."""

    def __init__(self, body: CompletionBody, answer_id: str, service: Service, choices: list[Choice]) -> None:
        self._body = body
        self._frame = Frame("text_completion", answer_id, service.name, body, choices)
        self._namer = logprobs.Namer(service.tokenizer, as_ids=body.return_tokens_as_token_ids)
        self._offsets: dict[int, int] = {}

    def event(self, choice: Choice, piece: Piece) -> bytes:
        if (error := failure(piece)) is not None:
            return event(error_object(error))
        first = self._frame.starts(choice)
        text = piece.text if choice.echo is None or not first else choice.echo + piece.text
        parts = [self._frame.head, b"%d" % choice.index, b',"text":', orjson.dumps(text), b',"logprobs":']
        if self._body.logprobs is None:
            parts.append(NULL)
        else:
            entries = (
                [*choice.prompt_logprobs, *piece.logprobs] if first and choice.echo is not None else piece.logprobs
            )
            parts.append(orjson.dumps(self._logprobs(choice, entries)))
        parts += [b',"finish_reason":', value_json(piece.finish_reason)]
        parts += [b',"stop_reason":', value_json(piece.stop_reason)]
        if self._body.return_token_ids:
            if first:
                parts += [b',"prompt_token_ids":', ids_json(choice.request.prompt_ids)]
            parts += [b',"token_ids":', ids_json(piece.token_ids)]
        parts += [b"}]", self._frame.tail(piece)]
        return b"".join(parts)

    def end(self) -> bytes:
        return self._frame.end()

    def body(self, gathered: list[Gathered]) -> dict[str, object]:
        frame = self._frame
        return {
            "id": frame.id,
            "object": "text_completion",
            "created": frame.created,
            "model": frame.model,
            "choices": [self._choice(whole) for whole in gathered],
            "usage": frame.usage,
        }

    def _choice(self, whole: Gathered) -> dict[str, object]:
        choice = whole.choice
        out: dict[str, object] = {
            "index": choice.index,
            "text": (choice.echo or "") + "".join(whole.text),
            "logprobs": None,
            "finish_reason": whole.finish_reason,
            "stop_reason": whole.stop_reason,
        }
        if self._body.logprobs is not None:
            entries = [*choice.prompt_logprobs, *whole.logprobs] if choice.echo is not None else whole.logprobs
            out["logprobs"] = self._logprobs(choice, entries)
        if self._body.prompt_logprobs is not None:
            out["prompt_logprobs"] = logprobs.prompt(choice.prompt_logprobs, self._namer)
        if self._body.return_token_ids:
            out["prompt_token_ids"], out["token_ids"] = choice.request.prompt_ids, whole.token_ids
        return out

    def _logprobs(self, choice: Choice, entries: Sequence[TokenLogprobs | None]) -> dict[str, object]:
        offset = self._offsets.get(choice.index, 0)
        content, self._offsets[choice.index] = logprobs.completion(
            entries, choice.request.prompt_ids, self._namer, offset
        )
        return content
