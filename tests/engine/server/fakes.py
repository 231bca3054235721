"""A scripted engine and a small byte-level tokenizer: enough to test the HTTP side without a model."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from engine.batch import Delivery, TokenLogprobs
from engine.config import EngineConfig, ModelConfig, SchedulerConfig, ServerConfig
from engine.request import FinishReason, Request
from engine.server.service import ModelInfo
from engine.server.template import ChatTemplate
from engine.server.tokenizer import Tokenizer

EOS_TEXT = "<|im_end|>"
CORPUS = ["the quick brown fox jumps over the lazy dog", "Grüße aus Köln, 你好世界 🙂🙃", "<think></think>"]
TEMPLATE = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}"
    "{%- else %}{{ '<think>\\n' }}{%- endif %}{%- endif %}"
)


@functools.cache
def byte_level_tokenizer() -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[EOS_TEXT, "<|im_start|>"],
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return Tokenizer(backend)


def word_level_tokenizer() -> Tokenizer:
    """What the tool's checkpoints have: whole words, joined by spaces, no decoder."""
    words = ["a", "bb", "ccc", "de", "日本", "<s>"]
    backend = tokenizers.Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend)


@dataclass(frozen=True)
class FakeStats:
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.25
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    out_of_memory: int = 0
    alive: bool = True
    error: str | None = None


@dataclass
class FakeEngine:
    """Answers every request with `script`, one token per step on a thread of its own, until max_tokens.

    `hold` keeps requests silent until it is set; `fail_after` ends them with an error after so many tokens.
    """

    script: Sequence[int] = tuple(range(40, 60))
    eos_at_end: bool = True
    hold: threading.Event | None = None
    fail_after: int | None = None
    refuse: Exception | None = None
    waiting: int = 0
    alive: bool = True
    tokens_per_delivery: int = 1
    submitted: list[Request] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    reasons: list[FinishReason] = field(default_factory=list)
    aborted_one: threading.Event = field(default_factory=threading.Event)
    on_submit: Callable[[Request], None] = lambda _: None

    def submit(self, request: Request, listener: Callable[[Delivery], None]) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.submitted.append(request)
        self.on_submit(request)
        threading.Thread(target=self._run, args=(request, listener), daemon=True).start()

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        self.aborted.append(request_id)
        self.reasons.append(reason)
        self.aborted_one.set()

    def stats(self) -> FakeStats:
        return FakeStats(waiting=self.waiting, alive=self.alive, error=None if self.alive else "it broke")

    def _run(self, request: Request, listener: Callable[[Delivery], None]) -> None:
        params = request.params
        if params.prompt_logprobs is not None:
            rows = [None, *(logprobs_of(i, params.prompt_logprobs) for i in request.prompt_ids[1:])]
            listener(Delivery(request.id, (), prompt_logprobs=tuple(rows)))
        ids = list(self.script)
        while params.ignore_eos and len(ids) < params.max_tokens:
            ids += self.script
        ids = ids[: params.max_tokens]
        for start in range(0, len(ids), self.tokens_per_delivery):
            if self.hold is not None:
                self.hold.wait(60)
            if request.id in self.aborted:
                return
            if self.fail_after is not None and start >= self.fail_after:
                listener(Delivery(request.id, (), finish_reason=FinishReason.ERROR, error="the device fell over"))
                return
            part = tuple(ids[start : start + self.tokens_per_delivery])
            last = start + self.tokens_per_delivery >= len(ids)
            reason = None
            if last:
                reason = FinishReason.LENGTH if len(ids) == params.max_tokens else FinishReason.STOP
            found = () if params.logprobs is None else tuple(logprobs_of(i, params.logprobs) for i in part)
            listener(Delivery(request.id, part, logprobs=found, finish_reason=reason))


def logprobs_of(token_id: int, count: int) -> TokenLogprobs:
    """The token first, then its right neighbours; the last one impossible."""
    values = [-0.5 - k for k in range(count)]
    if count > 1:
        values[-1] = float("-inf")
    top = tuple((token_id + k, value) for k, value in enumerate(values))
    return TokenLogprobs(token_id, -0.5, 1, top)


def config(**server: object) -> EngineConfig:
    return EngineConfig(
        ModelConfig(Path("/models/fake"), served_name="fake"),
        scheduler=SchedulerConfig(max_waiting=8),
        server=ServerConfig(**server),  # type: ignore[arg-type]
    )


def model_info(**changes: object) -> ModelInfo:
    values: dict[str, object] = {
        "vocab_size": 400,
        "max_model_len": 128,
        "eos_ids": frozenset({0}),
        "num_blocks": 64,
        "kv_cache_dtype": "bfloat16",
    }
    return ModelInfo(**{**values, **changes})  # type: ignore[arg-type]


def chat_template() -> ChatTemplate:
    return ChatTemplate(TEMPLATE)
