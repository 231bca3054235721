"""/v1/completions: prompts in any of their four shapes, and the answer in text_completion's form."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from engine.batch import TokenLogprobs
from engine.server import logprobs
from engine.server.choice import Choice, Piece
from engine.server.errors import error_object
from engine.server.forms import NULL, Frame, ids_json, new_id, value_json
from engine.server.http import EventStream, Gathered, collect, event, failure, read_body
from engine.server.intake import make_choices, prompts_of
from engine.server.protocol import CompletionBody, parse
from engine.server.service import Service
from engine.server.session import Session


async def completions(request: HttpRequest) -> Response:
    service: Service = request.app.state.service
    service.require()
    limits = service.config.server
    body = parse(CompletionBody, await read_body(request, limits.max_body_bytes))
    service.check_model(body.model)
    prompts = await prompts_of(body, service)
    answer_id = new_id("cmpl")
    choices: list[Choice] = []
    for index, prompt in enumerate(prompts):
        choices += make_choices(body, answer_id, index, prompt, service)
    form = CompletionForm(body, answer_id, service, choices)
    session = Session(service, choices)
    session.submit()  # last: from here on only the answer below frees what runs
    return EventStream(session, form) if body.stream else await collect(session, form, request.receive)


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
