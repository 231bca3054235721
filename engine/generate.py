"""`engine generate`: one request through the engine's own loop, without HTTP."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import TextIO

from engine.batch import Delivery
from engine.config import EngineConfig
from engine.errors import PreconditionError, UsageError
from engine.request import FinishReason, Request, SamplingParams
from engine.scheduler import RequestRefused
from engine.server.choice import Choice
from engine.server.loading import check_folder, load_engine, load_text_side
from engine.server.text import NoText


def generate(
    config: EngineConfig,
    params: SamplingParams,
    *,
    prompt: str | None,
    prompt_ids: Sequence[int] | None,
    show_ids: bool,
    out: TextIO,
) -> None:
    """Writes text (or ids, where asked for or where there is no tokenizer) as it comes. Raises EngineError."""
    if (prompt is None) == (prompt_ids is None):
        raise UsageError("give either --prompt or --prompt-ids")
    path = config.model.path
    check_folder(path)
    text = load_text_side(path)
    if prompt is not None:
        if text.tokenizer is None:
            raise PreconditionError(f"{path} has no tokenizer.json; use --prompt-ids")
        if any("\ud800" <= c <= "\udfff" for c in prompt):
            raise UsageError("--prompt is not UTF-8; use --prompt-ids, or set the locale's encoding")
        prompt_ids = text.tokenizer.encode(prompt, add_special_tokens=True)
    loaded = load_engine(config, text.sampling_defaults)
    ids = tuple(prompt_ids or ())
    try:
        if (wrong := next((i for i in ids if i >= loaded.info.vocab_size), None)) is not None:
            raise UsageError(f"token id {wrong} is outside the model's vocabulary of {loaded.info.vocab_size}")
        request = Request("generate", ids, params, loaded.info.eos_ids)
        detokenizer = text.tokenizer.detokenizer(skip_special_tokens=True) if text.tokenizer else NoText()
        choice = Choice(0, request, detokenizer)
        inbox: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        try:
            loaded.loop.submit(request, inbox.put)
        except RequestRefused as error:
            raise UsageError(str(error)) from error
        while not choice.finished:
            piece = choice.advance(inbox.get())
            if piece is None:
                continue
            if piece.finish_reason == FinishReason.ERROR:
                raise PreconditionError(f"the engine failed: {piece.error}")
            as_ids = show_ids or text.tokenizer is None
            out.write("".join(f"{i}\n" for i in piece.token_ids) if as_ids else piece.text)
            out.flush()
        if not (show_ids or text.tokenizer is None):
            out.write("\n")
    finally:
        loaded.loop.stop(drain=False)
