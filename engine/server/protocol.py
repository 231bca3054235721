"""What a request body may say. Every field is honoured or refused by name; nothing is ignored."""

from __future__ import annotations

import difflib
from itertools import chain
from typing import Annotated, Any, TypeVar, cast

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, PlainValidator, ValidationError

from engine.request import RANGES
from engine.server.errors import SHOWN_CHARS, ApiError, shown

MAX_STOP_TOKEN_IDS = MAX_LOGIT_BIAS = 1024
"""Both are looked at in every step that the request takes part in, so every other request pays for them."""


def _within(name: str) -> Any:
    """An optional number of engine.request.RANGES."""
    low, high = RANGES[name]
    return Field(None, ge=low, le=high, allow_inf_nan=False)


def _prompt(value: object) -> str | list[str] | list[int] | list[list[int]]:
    """One pass by exact type. A union of list types was rejected: pydantic tries each of them on the whole list and
    keeps one error per element, which turned 30 MB of `true` into 20 GB and minutes."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        kinds = set(map(type, value))
        if kinds in (set(), {str}, {int}) or (kinds == {list} and set(map(type, chain.from_iterable(value))) <= {int}):
            return cast("list[int]", value)
    raise ValueError("expected a text, a list of texts, a list of token ids or a list of lists of token ids")


def _stop(value: object) -> str | list[str]:
    if isinstance(value, str) or (isinstance(value, list) and set(map(type, value)) <= {str}):
        return cast("list[str]", value)
    raise ValueError("expected a text or a list of texts")


def _few(value: object) -> object:
    """Before each entry is looked at: a mapping, unlike a list, has no fail-fast mode."""
    if isinstance(value, dict) and len(value) > MAX_LOGIT_BIAS:
        raise ValueError(f"found {len(value)} entries; at most {MAX_LOGIT_BIAS} are allowed")
    return value


Finite = Annotated[float, Field(allow_inf_nan=False)]
TokenIds = Annotated[list[int], FailFast()]
Messages = Annotated[list[dict[str, Any]], FailFast()]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False
    """One last event with empty choices and the usage."""
    continuous_usage_stats: bool = False
    """The usage so far on every event (vLLM's extension)."""


class SamplingBody(BaseModel):
    """Fields that completions and chat share. A sampling field left out takes generation_config.json's value."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1)
    max_tokens: int | None = Field(None, ge=0)
    min_tokens: int = Field(0, ge=0)
    temperature: float | None = _within("temperature")
    top_p: Finite | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    """-1 and 0 keep the whole vocabulary; so does anything above its size."""
    min_p: float | None = _within("min_p")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    presence_penalty: Finite = Field(0.0, ge=-2, le=2)
    frequency_penalty: Finite = Field(0.0, ge=-2, le=2)
    repetition_penalty: float | None = _within("repetition_penalty")
    logit_bias: Annotated[dict[str, Finite], BeforeValidator(_few)] = {}
    stop: Annotated[str | list[str], PlainValidator(_stop)] = []
    stop_token_ids: TokenIds = Field([], max_length=MAX_STOP_TOKEN_IDS)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: int | None = Field(None, ge=-1)
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    """Logprobs name tokens as "token_id:N": the only way to tell tokens with equal text apart."""
    user: str | None = None
    """Accepted for the SDK; it has no meaning for one model on one machine."""


class CompletionBody(SamplingBody):
    prompt: Annotated[str | list[str] | list[int] | list[list[int]], PlainValidator(_prompt)]
    echo: bool = False
    logprobs: int | None = Field(None, ge=-1)
    add_special_tokens: bool = True


class ChatBody(SamplingBody):
    messages: Messages = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=-1)
    add_generation_prompt: bool = True
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] = {}


class TokenizeBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]] | None, FailFast()] = None
    add_special_tokens: bool | None = None
    """Default: true for a prompt, false for messages, whose template writes them itself."""
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    chat_template_kwargs: dict[str, Any] = {}


class DetokenizeBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str | None = None
    tokens: TokenIds


UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "cache_salt": (),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "functions": ([],),
    "function_call": ("none",),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_reasoning": (True,),
    "kv_transfer_params": (),
    "length_penalty": (1.0,),
    "logits_processors": ([],),
    "metadata": ({},),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "priority": (0,),
    "prompt_embeds": (),
    "reasoning_effort": (),
    "request_id": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "vllm_xargs": ({},),
    "web_search_options": (),
}
"""Parameters of OpenAI's or vLLM's API that this engine does not have, with the values that ask for nothing."""

BodyT = TypeVar("BodyT", bound=BaseModel)


def parse(kind: type[BodyT], raw: bytes) -> BodyT:
    """JSON bytes to a checked body. null means "not given". Raises ApiError 400 that names the field."""
    try:
        data = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise ApiError(f"the body is a JSON {type(data).__name__}; expected an object", code="invalid_json")
    fields = {name: value for name, value in data.items() if value is not None}
    for name in [name for name in fields if name not in kind.model_fields]:
        _refuse_unless_neutral(name, fields.pop(name), kind)
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _first(error) from None


def _refuse_unless_neutral(name: str, value: object, kind: type[BaseModel]) -> None:
    if name in UNSUPPORTED:
        if not any(type(value) is type(neutral) and value == neutral for neutral in UNSUPPORTED[name]):
            raise ApiError(f"`{name}` is not supported; leave it out", param=name, code="unsupported_parameter")
        return
    name = name[:SHOWN_CHARS]  # difflib indexes every character of it
    near = difflib.get_close_matches(name, kind.model_fields, n=1)
    hint = f"did you mean `{near[0]}`?" if near else "leave it out"
    raise ApiError(f"unknown parameter `{name}`; {hint}", param=name, code="unknown_parameter")


def _first(error: ValidationError) -> ApiError:
    """The first complaint alone."""
    problem = error.errors(include_url=False, include_context=False)[0]
    path = [str(part) for part in problem["loc"]]
    if problem["type"] == "missing":
        return ApiError(f"`{path[0]}` is missing", param=path[0], code="missing_parameter")
    if problem["type"] == "extra_forbidden":
        return ApiError(
            f"unknown parameter `{'.'.join(path)[:SHOWN_CHARS]}`; leave it out", param=path[0], code="unknown_parameter"
        )
    where, complaint = ".".join(path)[:SHOWN_CHARS], problem["msg"].removeprefix("Value error, ")
    message = f"`{where}` is {shown(problem['input'])}; {complaint[0].lower()}{complaint[1:]}"
    return ApiError(message, param=path[0], code="invalid_value")
