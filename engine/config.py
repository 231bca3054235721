"""Every setting of the engine, with its one default. The command line reads these; nothing else repeats them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Sizes of the two pools a hybrid model needs: paged KV blocks and recurrent-state slots."""

    block_tokens: int = 16
    """Tokens per KV block. Small, because state slots are not tied to attention pages."""
    num_blocks: int | None = None
    """KV blocks in the pool; None sizes it for max_num_seqs × max_model_len, or to what memory allows."""
    kv_cache_dtype: str = "auto"
    """"auto" (what the checkpoint asks), "bfloat16" or "fp8"."""


MOST_BATCHED_TOKENS = 65_536
"""Of one step. Kernels count values of a mixture's pairs in 32 bits: 9 of 2,048 a token of the 35B end at 116,508."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one step."""

    max_num_seqs: int = 32
    """Requests running at once; also the number of recurrent-state slots."""
    max_num_batched_tokens: int = 16384
    """Token budget of one step, decode tokens first, the rest for prefill chunks. Prompts that arrive together are best
    run together: sequences that already decode wait through every step of prefill, and a step writes each weight out in
    row order once, whatever it holds. The price is the longest wait between two tokens: that of the largest step."""
    max_model_len: int = 4096
    """Prompt plus output tokens of one request."""
    max_waiting: int = 1024
    """Queue bound; one more is refused with 503."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What to load and how to run it."""

    path: Path
    served_name: str | None = None
    """Name in the API; None means the path as given."""
    device: str = "auto"
    """"auto", "cpu" or "cuda"."""
    dtype: str = "bfloat16"
    """Activation dtype: "bfloat16", or "float32" for agreement tests."""
    allow_reference: bool = False
    """On CUDA: permit the slow fp32 references where a kernel is missing. On a CPU they are all there is."""
    dequant_cache_bytes: int = 2 * 2**30
    """CPU references keep dequantised weights up to this many bytes; beyond it they dequantise per call."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The HTTP side."""

    host: str = "127.0.0.1"
    port: int = 8000
    max_body_bytes: int = 32 * 2**20
    max_n: int = 16
    max_prompts: int = 256
    """Prompts in one /v1/completions body."""
    max_logprobs: int = 20
    """Largest accepted `logprobs`; -1 allows the whole vocabulary."""
    api_key_env: str | None = None
    """Environment variable that holds the bearer key; None leaves the server open on its host."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The whole, as `/version` reports it."""

    model: ModelConfig
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
