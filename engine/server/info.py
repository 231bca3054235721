"""Everything that generates nothing: health, version, metrics, models, tokenize, detokenize."""

from __future__ import annotations

import asyncio
import dataclasses
import time

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from engine import manifest
from engine.config import EngineConfig
from engine.server.chat import render
from engine.server.errors import ApiError, not_ready
from engine.server.http import json_response, read_body
from engine.server.intake import encode
from engine.server.protocol import DetokenizeBody, TokenizeBody, parse
from engine.server.sampling import check_token_ids
from engine.server.service import ModelInfo, Service

_STARTED = int(time.time())


NO_CHOICE = {
    "enable_prefix_caching": False,
    "enable_chunked_prefill": True,
    "scheduling_policy": "fcfs",
    "speculative_config": None,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
}
"""What this engine cannot be set to otherwise, under vLLM's names: whoever compares two servers need not guess."""


async def health(request: HttpRequest) -> Response:
    """200 once the model is loaded and the engine's loop is alive, else 503 with the reason."""
    service: Service = request.app.state.service
    if (reason := service.unavailable()) is not None:
        raise not_ready(reason)
    return Response(status_code=200)


async def version(request: HttpRequest) -> Response:
    """What runs here and with which settings; answers while the model loads, with a null manifest."""
    service: Service = request.app.state.service
    return json_response(
        {
            "version": manifest.version(),
            "engine": "gate-and-engine",
            "manifest": dict(service.manifest) or None,
            "config": effective_config(service.config, service.info),
        }
    )


def effective_config(config: EngineConfig, info: ModelInfo | None) -> dict[str, object]:
    """One flat object under vLLM's names where it has them; "auto" replaced by what it came to, once that is known."""
    flat: dict[str, object] = {}
    for part in (config.model, config.cache, config.scheduler, config.server):
        flat.update(dataclasses.asdict(part))
    flat["model"] = str(flat.pop("path"))
    flat["served_model_name"] = flat.pop("served_name") or flat["model"]
    flat |= NO_CHOICE
    if info is not None:
        flat["max_model_len"] = info.max_model_len
        flat["num_gpu_blocks"] = info.num_blocks  # vLLM's name; num_blocks stays what was asked for
        flat["kv_cache_dtype"] = info.kv_cache_dtype
        flat["sampling_defaults"] = dict(info.sampling_defaults)
    return flat


async def metrics(request: HttpRequest) -> Response:
    service: Service = request.app.state.service
    return Response(service.metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})


async def models(request: HttpRequest) -> Response:
    service: Service = request.app.state.service
    _, info = service.require()
    card = {
        "id": service.name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "gate-and-engine",
        "root": str(service.config.model.path),
        "parent": None,
        "max_model_len": info.max_model_len,
    }
    return json_response({"object": "list", "data": [card]})


async def tokenize(request: HttpRequest) -> Response:
    """A prompt or messages to ids, as a completion or a chat would see them."""
    service: Service = request.app.state.service
    _, info = service.require()
    body = parse(TokenizeBody, await read_body(request, service.config.server.max_body_bytes))
    service.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError("give either `prompt` or `messages`", param="prompt")
    if body.messages is not None:
        text, special = (
            render(
                service,
                body.messages,
                add_generation_prompt=body.add_generation_prompt,
                kwargs=body.chat_template_kwargs,
            ),
            False,
        )
    else:
        text, special = body.prompt or "", True
    special = special if body.add_special_tokens is None else body.add_special_tokens
    ids = await encode(service, text, add_special_tokens=special)
    tokenizer = service.require_tokenizer("/tokenize")
    strings = [tokenizer.token_text(i) for i in ids] if body.return_token_strs else None
    return json_response({"count": len(ids), "max_model_len": info.max_model_len, "tokens": ids, "token_strs": strings})


async def detokenize(request: HttpRequest) -> Response:
    service: Service = request.app.state.service
    _, info = service.require()
    body = parse(DetokenizeBody, await read_body(request, service.config.server.max_body_bytes))
    service.check_model(body.model)
    check_token_ids("tokens", body.tokens, info.vocab_size)
    tokenizer = service.require_tokenizer("/detokenize")
    text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special_tokens=False)
    return json_response({"prompt": text})
