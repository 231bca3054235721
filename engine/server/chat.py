"""/v1/chat/completions: the checkpoint's template makes the prompt, the reasoning split makes the message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from engine.server import logprobs
from engine.server.choice import Choice, Piece
from engine.server.errors import ApiError, error_object
from engine.server.forms import NULL, Frame, ids_json, new_id, value_json
from engine.server.http import EventStream, Gathered, collect, event, failure, read_body
from engine.server.intake import choice_for, encode, per_choice
from engine.server.parsers import ReasoningSplit
from engine.server.protocol import ChatBody, parse
from engine.server.sampling import sampling_params
from engine.server.service import Service
from engine.server.session import Session


async def chat_completions(request: HttpRequest) -> Response:
    service: Service = request.app.state.service
    _, info = service.require()
    body = parse(ChatBody, await read_body(request, service.config.server.max_body_bytes))
    service.check_model(body.model)
    text = render(
        service, body.messages, add_generation_prompt=body.add_generation_prompt, kwargs=body.chat_template_kwargs
    )
    ids = await encode(service, text, add_special_tokens=body.add_special_tokens)
    params = sampling_params(body, len(ids), info, service.config.server)
    answer_id = new_id("chatcmpl")
    choices = [
        choice_for(body, f"{answer_id}-{k}", k, ids, one, service) for k, one in enumerate(per_choice(params, body.n))
    ]
    form = ChatForm(body, answer_id, service, choices, prompt=text)
    session = Session(service, choices)
    session.submit()  # last: from here on only the answer below frees what runs
    return EventStream(session, form) if body.stream else await collect(session, form, request.receive)


def render(
    service: Service,
    messages: Sequence[Mapping[str, object]],
    *,
    add_generation_prompt: bool,
    kwargs: Mapping[str, object],
) -> str:
    """Raises ApiError 400 where the checkpoint has no tokenizer or no template, or the template refuses."""
    service.require_tokenizer("chat")
    if service.template is None:
        raise ApiError(
            f"{service.config.model.path} has no chat template; use /v1/completions", code="no_chat_template"
        )
    _, info = service.require()
    if len(messages) >= info.max_model_len:  # before a template, which is slow code, walks them
        raise ApiError(
            f"{len(messages)} messages of at least a token each do not fit {info.max_model_len} tokens of context",
            param="messages",
            code="context_length_exceeded",
        )
    reserved = sorted({"messages", "add_generation_prompt"} & kwargs.keys())
    if reserved:
        raise ApiError(f"`chat_template_kwargs` may not set `{reserved[0]}`", param="chat_template_kwargs")
    return service.template.render(messages, add_generation_prompt=add_generation_prompt, kwargs=kwargs)


class ChatForm:
    """chat.completion and chat.completion.chunk objects. The role comes with the first token, never alone before it:
    an event without a token would be taken for the first one."""

    def __init__(self, body: ChatBody, answer_id: str, service: Service, choices: list[Choice], prompt: str) -> None:
        self._body = body
        self._frame = Frame("chat.completion.chunk", answer_id, service.name, body, choices)
        self._namer = logprobs.Namer(service.tokenizer, as_ids=body.return_tokens_as_token_ids)
        tail = prompt.rstrip()
        split = service.template is not None and service.template.thinks() and not tail.endswith("</think>")
        inside = tail.endswith("<think>")
        self._splits = {c.index: ReasoningSplit(inside=inside) for c in choices} if split else {}

    def event(self, choice: Choice, piece: Piece) -> bytes:
        if (error := failure(piece)) is not None:
            return event(error_object(error))
        first = self._frame.starts(choice)
        reasoning, content = self._split(choice, piece.text, last=piece.finish_reason is not None)
        delta = {"role": "assistant"} if first else {}
        if reasoning:
            delta["reasoning"] = delta["reasoning_content"] = reasoning
        if content or not reasoning:
            delta["content"] = content
        parts = [self._frame.head, b"%d" % choice.index, b',"delta":', orjson.dumps(delta), b',"logprobs":']
        parts.append(orjson.dumps(logprobs.chat(piece.logprobs, self._namer)) if self._body.logprobs else NULL)
        parts += [b',"finish_reason":', value_json(piece.finish_reason)]
        parts += [b',"stop_reason":', value_json(piece.stop_reason)]
        if self._body.return_token_ids:
            parts += [b',"token_ids":', ids_json(piece.token_ids)]
        parts.append(b"}]")
        if self._body.return_token_ids and first:
            parts += [b',"prompt_token_ids":', ids_json(choice.request.prompt_ids)]
        parts.append(self._frame.tail(piece))
        return b"".join(parts)

    def end(self) -> bytes:
        return self._frame.end()

    def body(self, gathered: list[Gathered]) -> dict[str, object]:
        frame, request = self._frame, gathered[0].choice.request
        out: dict[str, object] = {
            "id": frame.id,
            "object": "chat.completion",
            "created": frame.created,
            "model": frame.model,
            "choices": [self._choice(whole) for whole in gathered],
            "usage": frame.usage,
        }
        if self._body.prompt_logprobs is not None:
            out["prompt_logprobs"] = logprobs.prompt(gathered[0].choice.prompt_logprobs, self._namer)
        if self._body.return_token_ids:
            out["prompt_token_ids"] = request.prompt_ids
        return out

    def _choice(self, whole: Gathered) -> dict[str, object]:
        reasoning, content = self._split(whole.choice, "".join(whole.text), last=True)
        message: dict[str, object] = {
            "role": "assistant",
            "content": content if content or not reasoning else None,
            "reasoning": reasoning or None,
            "reasoning_content": reasoning or None,
        }
        out: dict[str, object] = {
            "index": whole.choice.index,
            "message": message,
            "logprobs": logprobs.chat(whole.logprobs, self._namer) if self._body.logprobs else None,
            "finish_reason": whole.finish_reason,
            "stop_reason": whole.stop_reason,
        }
        if self._body.return_token_ids:
            out["token_ids"] = whole.token_ids
        return out

    def _split(self, choice: Choice, text: str, *, last: bool) -> tuple[str, str]:
        """(reasoning, content)."""
        split = self._splits.get(choice.index)
        if split is None:
            return "", text
        reasoning, content = split.feed(text)
        if last:
            more_reasoning, more_content = split.flush()
            return reasoning + more_reasoning, content + more_content
        return reasoning, content
