"""From a checked body to the choices it asks for: prompts to token ids, n to n requests."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import cast

from engine.request import Request, SamplingParams
from engine.server.choice import Choice
from engine.server.errors import ApiError
from engine.server.protocol import CompletionBody, SamplingBody
from engine.server.sampling import check_prompt_length, check_token_ids, sampling_params, stop_strings
from engine.server.service import Service
from engine.server.text import NoText, StopStrings

ENCODE_IN_THREAD_CHARS = 4096
"""Longer texts are tokenised off the event loop, which carries every other stream's tokens meanwhile."""

CHARS_PER_TOKEN = 128
"""A text of more than this many characters per token of context is refused unread: tokenising 30 MB takes minutes. No
token of a published vocabulary is longer; only unknown words of a word-level one are, and those are not prompts."""

Prompt = tuple[list[int], str | None]
"""Token ids, and the text they came from."""


def make_choices(
    body: CompletionBody, answer_id: str, prompt_index: int, prompt: Prompt, service: Service
) -> list[Choice]:
    """n choices of one prompt. max_tokens 0 becomes one token that is thrown away: a prompt is run to sample."""
    _, info = service.require()
    ids, text = prompt
    params = sampling_params(body, len(ids), info, service.config.server)
    echo = _echo(ids, text, service) if body.echo else None
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


def _echo(ids: list[int], text: str | None, service: Service) -> str:
    tokenizer = service.require_tokenizer("`echo`")
    return tokenizer.decode(ids, skip_special_tokens=False) if text is None else text


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


async def prompts_of(body: CompletionBody, service: Service) -> list[Prompt]:
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
            check_prompt_length("prompt", len(ids), info)  # first: its cost does not grow with what a client sends
            check_token_ids("prompt", ids, info.vocab_size)
            prompts.append((ids, None))
    return prompts


async def encode(service: Service, text: str, *, add_special_tokens: bool) -> list[int]:
    """Raises ApiError 400 for a token that the tokenizer knows and the model does not: they are separate files."""
    tokenizer, (_, info) = service.require_tokenizer("a text prompt"), service.require()
    limit = CHARS_PER_TOKEN * info.max_model_len
    if len(text) > limit:
        raise ApiError(
            f"the text has {len(text)} characters, and {info.max_model_len} tokens of context hold {limit} at most; "
            "shorten it",
            code="context_length_exceeded",
        )
    if len(text) < ENCODE_IN_THREAD_CHARS:
        ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    else:
        ids = await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=add_special_tokens)
    check_token_ids("the tokenizer's output", ids, info.vocab_size)
    return ids
