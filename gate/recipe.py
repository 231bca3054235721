"""1 Strict TOML -> frozen Recipe. An unknown key is an error that names the nearest known one."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Checkpoint(Table):
    """Which weights. Either a local folder, or a hub id at a pinned revision."""

    path: str | None = None
    """Folder, relative to the repository root."""
    hub: str | None = None
    revision: str | None = None
    """40 hex digits; never a branch name."""
    digest: str | None = None
    """sha256 of the folder's contents (preflight/checkpoint.py), for local folders."""
    oracle_path: str | None = None
    """The oracle's own copy where its platform cannot run the shipped one; both digests are reported."""
    oracle_digest: str | None = None
    make: str | None = None
    """The command that makes a missing local folder, shown in the error."""


class Workload(Table):
    prompt_tokens: int = Field(1024, ge=1)
    output_tokens: int = Field(128, ge=1)
    requests_per_stream: int = Field(2, ge=1)
    """Closed loop: a leg at concurrency C sends C × this many requests."""
    warmup_per_stream: int = Field(1, ge=0)
    """Untimed requests per stream at the start of each leg, with prompts of their own."""
    arrival: Literal["closed", "poisson", "constant"] = "closed"
    rate_per_stream: float | None = None
    """Open loop: requests per second are this × C."""
    seed: int = 0
    max_common_prefix: int = Field(8, ge=0)
    """Longest shared prefix, in tokens, of any two prompts."""


class Protocol(Table):
    concurrency: tuple[int, ...] = (1, 2, 4, 8)
    repetitions: int = Field(3, ge=1)
    residency: Literal["both", "alternate"] = "both"
    floor: float = 1.0
    band: float = 0.01
    """Assumed until the host is calibrated; an assumed band is printed as such and the grid does not bind."""
    max_spread: float = 0.05
    """(max − min) / median of an arm's repetitions above which a cell is VOID."""
    primary: tuple[str, ...] = ("output_throughput", "tpot_median_ms", "ttft_median_ms")
    near_tie_nats: float = 0.25
    """Largest oracle margin at a first divergence that counts as a near tie."""
    ready_timeout_s: float = 900.0
    request_timeout_s: float = 600.0


class CandidateTable(Table):
    kind: str = "engine"
    """"engine", a command line with {model} {port} {host}, or an http:// URL that is already serving."""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}


class OracleTable(Table):
    kind: str = "vllm"
    platform: Literal["cpu", "cuda"] = "cuda"
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}


class Recipe(Table):
    """One gated model: what is measured, how, and against what."""

    schema_version: Literal[1]
    name: str
    description: str = ""
    gpu: bool = True
    """False: no GPU is locked or sampled; the host is the device."""
    max_model_len: int = 4096
    max_num_seqs: int = 32
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8"] = "auto"
    """Set on both arms."""
    checkpoint: Checkpoint
    workload: Workload = Workload()
    protocol: Protocol = Protocol()
    candidate: CandidateTable = CandidateTable()
    oracle: OracleTable = OracleTable()
