"""What a request body may say. Every field is honoured or refused by name; nothing is ignored."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.server.errors import ApiError

Finite = Annotated[float, Field(allow_inf_nan=False)]


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
    temperature: Finite | None = Field(None, ge=0)
    top_p: Finite | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: Finite | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    presence_penalty: Finite = Field(0.0, ge=-2, le=2)
    frequency_penalty: Finite = Field(0.0, ge=-2, le=2)
    repetition_penalty: Finite | None = Field(None, gt=0)
    logit_bias: dict[str, Finite] = {}
    stop: str | list[str] = []
    stop_token_ids: list[int] = []
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
    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool = False
    logprobs: int | None = Field(None, ge=-1)
    add_special_tokens: bool = True


class ChatBody(SamplingBody):
    messages: list[dict[str, Any]] = Field(min_length=1)
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
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    """Default: true for a prompt, false for messages, whose template writes them itself."""
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    chat_template_kwargs: dict[str, Any] = {}


class DetokenizeBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str | None = None
    tokens: list[int]


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
    near = difflib.get_close_matches(name, kind.model_fields, n=1)
    hint = f"did you mean `{near[0]}`?" if near else "leave it out"
    raise ApiError(f"unknown parameter `{name}`; {hint}", param=name, code="unknown_parameter")


def _first(error: ValidationError) -> ApiError:
    """The first complaint; for a union (prompt, stop) all its shapes at once would be noise."""
    problem = error.errors(include_url=False, include_context=False)[0]
    path = [str(part) for part in problem["loc"]]
    if problem["type"] == "missing":
        return ApiError(f"`{path[0]}` is missing", param=path[0], code="missing_parameter")
    shapes: dict[str, Literal[True] | str] = {
        "prompt": "a text, a list of texts, a list of token ids or a list of lists of token ids",
        "stop": "a text or a list of texts",
    }
    if path[0] in shapes:
        return ApiError(f"`{path[0]}` must be {shapes[path[0]]}", param=path[0], code="invalid_type")
    if problem["type"] == "extra_forbidden":
        return ApiError(f"unknown parameter `{'.'.join(path)}`; leave it out", param=path[0], code="unknown_parameter")
    found = repr(problem["input"])
    found = found if len(found) <= 60 else found[:57] + "..."
    return ApiError(f"`{'.'.join(path)}` is {found}; {problem['msg'].lower()}", param=path[0], code="invalid_value")
