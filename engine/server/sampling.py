"""A checked body and a prompt's length to SamplingParams: the limits that depend on the model and the server."""

from __future__ import annotations

import re

from engine.config import ServerConfig
from engine.request import SamplingParams
from engine.server.errors import ApiError, shown
from engine.server.protocol import ChatBody, CompletionBody, SamplingBody
from engine.server.service import ModelInfo

GREEDY_BELOW = 1e-5
"""A temperature under this is greedy: logits divided by it would overflow float32. vLLM draws the same line."""

MAX_STOPS, MAX_STOP_CHARS = 64, 1024
"""Every token's text is compared with every stop string, on the thread that carries all streams."""

TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")
"""One spelling per id: `1` and `01` would be two biases of one token."""

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for /v1/completions; chat's default is what the context leaves."""


def sampling_params(
    body: CompletionBody | ChatBody, prompt_tokens: int, info: ModelInfo, limits: ServerConfig
) -> SamplingParams:
    """Raises ApiError 400 with field and numbers. What only the prompt leaves no room for is cut, as in vLLM."""
    param = "prompt" if isinstance(body, CompletionBody) else "messages"
    check_prompt_length(param, prompt_tokens, info)
    room = info.max_model_len - prompt_tokens
    asked, logprobs = _completion_lengths(body) if isinstance(body, CompletionBody) else _chat_lengths(body)
    if asked is not None and asked > info.max_model_len:
        raise ApiError(
            f"`max_tokens` is {asked} and this model takes {info.max_model_len} tokens for prompt and output together; "
            "ask for fewer, or leave it out",
            param="max_tokens",
            code="context_length_exceeded",
        )
    max_tokens = room if asked is None else min(asked, room)
    if body.min_tokens > max_tokens:
        raise ApiError(
            f"`min_tokens` is {body.min_tokens} and at most {max_tokens} tokens can come", param="min_tokens"
        )
    top_name = "logprobs" if isinstance(body, CompletionBody) else "top_logprobs"
    _check_logprobs(top_name, logprobs, limits)
    _check_logprobs("prompt_logprobs", body.prompt_logprobs, limits)
    if body.prompt_logprobs is not None and body.stream:
        raise ApiError("`prompt_logprobs` is not available with `stream`; ask without it", param="prompt_logprobs")

    def chosen(name: str, neutral: float) -> float:
        value: float | None = getattr(body, name)
        return info.sampling_defaults.get(name, neutral) if value is None else value

    temperature = chosen("temperature", 1.0)
    temperature = 0.0 if temperature < GREEDY_BELOW else temperature
    if body.n > limits.max_n:
        raise ApiError(f"`n` is {body.n}; this server allows {limits.max_n}", param="n", code="limit_exceeded")
    if body.n > 1 and temperature == 0.0:
        raise ApiError(f"`n` is {body.n} at temperature 0, where all choices are equal; ask for 1", param="n")
    stop_token_ids = _stop_token_ids(body, info)
    if body.min_tokens and len(info.eos_ids.union(stop_token_ids)) >= info.vocab_size:
        raise ApiError(
            "`min_tokens` forbids every stop token, and `stop_token_ids` names the whole vocabulary; name fewer",
            param="stop_token_ids",
        )
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        temperature=temperature,
        top_p=chosen("top_p", 1.0),
        top_k=min(max(0, int(chosen("top_k", 0))), info.vocab_size),
        min_p=chosen("min_p", 0.0),
        seed=body.seed,
        repetition_penalty=chosen("repetition_penalty", 1.0),
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=_logit_bias(body, info),
        stop_token_ids=stop_token_ids,
        ignore_eos=body.ignore_eos,
        logprobs=logprobs,
        prompt_logprobs=body.prompt_logprobs,
    )


def check_prompt_length(param: str, tokens: int, info: ModelInfo) -> None:
    """Raises ApiError 400 for an empty prompt and for one that leaves no room for an output token."""
    if tokens == 0:
        raise ApiError("the prompt is empty; send at least one token", param="prompt", code="empty_prompt")
    if tokens >= info.max_model_len:
        raise ApiError(
            f"the prompt has {tokens} tokens and this model takes {info.max_model_len} for prompt and output together; "
            f"shorten it to {info.max_model_len - 1} at most",
            param=param,
            code="context_length_exceeded",
        )


def _completion_lengths(body: CompletionBody) -> tuple[int | None, int | None]:
    """(max_tokens, logprobs)."""
    max_tokens = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if max_tokens == 0 and not body.echo:
        raise ApiError("`max_tokens` is 0, which asks for nothing without `echo`", param="max_tokens")
    return max_tokens, body.logprobs


def _chat_lengths(body: ChatBody) -> tuple[int | None, int | None]:
    """(max_tokens or None for all that fits, logprobs). `max_completion_tokens` is the newer name and wins."""
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError("`top_logprobs` needs `logprobs`: true", param="top_logprobs")
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if max_tokens == 0:
        raise ApiError("`max_tokens` is 0; a chat answer has at least 1 token", param="max_tokens")
    return max_tokens, (body.top_logprobs or 0) if body.logprobs else None


def _check_logprobs(name: str, asked: int | None, limits: ServerConfig) -> None:
    if asked is None or limits.max_logprobs == -1:
        return
    if asked == -1 or asked > limits.max_logprobs:
        raise ApiError(
            f"`{name}` is {asked}; this server allows {limits.max_logprobs} (--max-logprobs)",
            param=name,
            code="limit_exceeded",
        )


def check_token_ids(name: str, ids: list[int], vocab_size: int) -> None:
    """Raises ApiError 400 with the first id that the model does not have."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        wrong = next(i for i in ids if not 0 <= i < vocab_size)
        raise ApiError(
            f"token id {wrong} in `{name}` is outside this model's vocabulary of {vocab_size} (0 to {vocab_size - 1})",
            param=name,
            code="token_id_out_of_range",
        )


def _stop_token_ids(body: SamplingBody, info: ModelInfo) -> tuple[int, ...]:
    check_token_ids("stop_token_ids", body.stop_token_ids, info.vocab_size)
    return tuple(dict.fromkeys(body.stop_token_ids))


def _logit_bias(body: SamplingBody, info: ModelInfo) -> tuple[tuple[int, float], ...]:
    """OpenAI's {"id": bias}, bias within ±100."""
    for key, bias in body.logit_bias.items():
        if not TOKEN_ID.fullmatch(key) or not -100 <= bias <= 100:
            raise ApiError(
                f"`logit_bias` has {shown(key)}: {bias}; expected a token id as text and a bias from -100 to 100",
                param="logit_bias",
            )
    ids = [int(key) for key in body.logit_bias]
    check_token_ids("logit_bias", ids, info.vocab_size)
    return tuple(zip(ids, body.logit_bias.values(), strict=True))


def stop_strings(body: SamplingBody) -> tuple[str, ...]:
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if "" in stops:
        raise ApiError("`stop` has an empty text; leave it out", param="stop")
    longest = max((len(stop) for stop in stops), default=0)
    if len(stops) > MAX_STOPS or longest > MAX_STOP_CHARS:
        raise ApiError(
            f"`stop` has {len(stops)} texts, the longest of {longest} characters; at most {MAX_STOPS} of "
            f"{MAX_STOP_CHARS} are allowed",
            param="stop",
            code="limit_exceeded",
        )
    return stops
