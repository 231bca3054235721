"""What the routes share: the engine behind a Protocol, the tokenizer, the limits, and whether all of it is ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from engine.batch import Delivery
from engine.config import EngineConfig
from engine.request import FinishReason, Request
from engine.server.errors import ApiError, not_ready, shown
from engine.server.metrics import Metrics
from engine.server.template import ChatTemplate
from engine.server.tokenizer import Tokenizer

if TYPE_CHECKING:
    from engine.server.session import Mailbox, Session


class Stats(Protocol):
    """The counters of engine.loop.LoopStats that the server reads."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_usage(self) -> float: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def generation_tokens(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def out_of_memory(self) -> int: ...
    @property
    def alive(self) -> bool: ...
    @property
    def error(self) -> str | None: ...


class Engine(Protocol):
    """engine.loop.EngineLoop as the server uses it. All three are thread-safe."""

    def submit(self, request: Request, listener: Callable[[Delivery], None]) -> None:
        """`listener` is called on the engine's thread, once per step that produced something."""
        ...

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        """STOP where a stop string ended it. An id that is finished or unknown is no error."""
        ...

    def stats(self) -> Stats: ...


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the loaded model is."""

    vocab_size: int
    max_model_len: int
    eos_ids: frozenset[int]
    num_blocks: int
    kv_cache_dtype: str = "auto"
    """The dtype that "auto" came to."""
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    """temperature, top_p, top_k, min_p, repetition_penalty from generation_config.json, where it has them."""


@dataclass(slots=True)
class Service:
    """Starts without an engine; `ready` is called once, by the thread that loaded it."""

    config: EngineConfig
    metrics: Metrics
    tokenizer: Tokenizer | None = None
    template: ChatTemplate | None = None
    engine: Engine | None = None
    info: ModelInfo | None = None
    closing: bool = False
    manifest: Mapping[str, object] = field(default_factory=dict)
    mailbox: Mailbox | None = None
    sessions: set[Session] = field(default_factory=set)
    """Those that still wait for tokens."""

    @property
    def name(self) -> str:
        """The model's name in the API."""
        return served_name(self.config)

    def ready(self, engine: Engine, info: ModelInfo, manifest: Mapping[str, object]) -> None:
        self.info, self.manifest = info, manifest
        self.metrics.watch(engine.stats, cache_config(self.config, info))
        self.engine = engine

    def close(self) -> None:
        """Refuse what is new and end what runs, so that the process can leave within a second."""
        self.closing = True
        for session in list(self.sessions):
            session.leave()

    def unavailable(self) -> str | None:
        """Why no request can be served now, or None."""
        if self.closing:
            return "the server is shutting down"
        if self.engine is None or self.info is None:
            return "the model is loading"
        stats = self.engine.stats()
        if not stats.alive:
            return f"the engine has stopped ({stats.error or 'no error known'}); restart the server"
        return None

    def require(self) -> tuple[Engine, ModelInfo]:
        """The engine, or ApiError 503."""
        if (reason := self.unavailable()) is not None or self.engine is None or self.info is None:
            raise not_ready(reason or "the model is loading")
        return self.engine, self.info

    def require_tokenizer(self, purpose: str) -> Tokenizer:
        """The tokenizer, or ApiError 400 that says what needs it."""
        if self.tokenizer is None:
            raise ApiError(
                f"{purpose} needs a tokenizer and {self.config.model.path} has no tokenizer.json; send token ids",
                code="no_tokenizer",
            )
        return self.tokenizer

    def check_model(self, model: str | None) -> None:
        if model is not None and model != self.name:
            raise ApiError(
                f"model {shown(model)} is not served here; this server has `{self.name}`",
                status=404,
                param="model",
                code="model_not_found",
            )


def served_name(config: EngineConfig) -> str:
    return config.model.served_name or str(config.model.path)


def cache_config(config: EngineConfig, info: ModelInfo) -> dict[str, str]:
    """Labels of cache_config_info, named and spelt as vLLM's, for whoever reads the settings back."""
    return {
        "block_size": str(config.cache.block_tokens),
        "cache_dtype": info.kv_cache_dtype,
        "enable_prefix_caching": "False",
        "mamba_ssm_cache_dtype": "float32",
        "num_gpu_blocks": str(info.num_blocks),
        "num_gpu_blocks_override": str(config.cache.num_blocks),
    }
