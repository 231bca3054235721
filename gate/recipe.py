"""1 Strict TOML -> frozen Recipe. An unknown key is an error that names the nearest known one."""

from __future__ import annotations

import difflib
import tomllib
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gate.errors import StorageError, UsageError

ROOT = Path(__file__).resolve().parents[1]
"""The repository: relative checkpoint folders start here."""
RECIPES = ROOT / "recipes"
REVISION = r"^[0-9a-f]{40}$"
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""A recipe's name becomes part of a folder name."""
NAME_OF_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
MOST_TOKENS = 2**20
"""Upper limits exist so that a slip of the finger is one line and not a plan that fills the memory."""

STEPS_PER_TURN = 4
"""Decoding steps from one stream's prompt to the next one's in a staggered start, at least. With two a request's median
gap is now decoding's and now a prefill's, and sound legs are VOID as drifting (tests/gate/client/test_start.py).
"""

Word = Annotated[str, Field(pattern=r"^[^\x00]*$")]
"""What a command line or an environment can hold."""


class Table(BaseModel):
    # TOML knows inf and nan; no limit of ours may be one, and JSON cannot hold them.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Checkpoint(Table):
    """Which weights. Either a local folder, or a hub id at a pinned revision."""

    path: str | None = None
    """Folder, relative to the repository root."""
    hub: str | None = None
    """Hugging Face id, such as nvidia/Qwen3.6-27B-NVFP4."""
    revision: str | None = Field(None, pattern=REVISION)
    """40 hex digits; never a branch name."""
    digest: str | None = None
    """sha256 of the folder's contents (preflight/checkpoint.py), for local folders."""
    oracle_path: str | None = None
    """The oracle's own copy where its platform cannot run the shipped one; both digests are reported."""
    oracle_digest: str | None = None
    """The same of the oracle's copy."""
    make: str | None = None
    """The command that makes a missing local folder, shown in the error."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.hub is None):
            raise ValueError("needs either path or hub, not both and not neither")
        if self.hub is not None and self.revision is None:
            raise ValueError("hub needs revision, 40 hex digits; a branch name can move")
        return self


class Workload(Table):
    """What every leg sends; both arms get the same."""

    prompt_tokens: int = Field(1024, ge=1, le=MOST_TOKENS)
    """Length of every prompt, in token ids."""
    output_tokens: int = Field(128, ge=1, le=MOST_TOKENS)
    """Tokens every request generates; the end of sequence is ignored."""
    requests_per_stream: int = Field(2, ge=1, le=10_000)
    """Closed loop: a leg at concurrency C sends C × this many requests."""
    min_requests_per_leg: int = Field(0, ge=0, le=10_000)
    """Fewest timed requests of a leg, rounded up to a multiple of C; 0: requests_per_stream alone decides. Narrows the
    scatter of single requests, not two modes that a leg keeps, which `start` is for."""
    warmup_per_stream: int = Field(1, ge=0, le=1_000)
    """Untimed requests per stream at the start of each leg, with prompts of their own."""
    start: Literal["together", "staggered"] = "together"
    """Closed loop. together: all streams send their first timed request at once, after the warm-up. staggered: each
    when its own warm-up ends, whose last requests differ in length so that the streams' turns are evenly spaced. Both
    arms alike; needs two requests a stream and output_tokens of 4 × C. See metrics.md, "How a leg starts"."""
    arrival: Literal["closed", "poisson", "constant"] = "closed"
    """closed: C workers, each sends its next request when the last one ended; the others keep a schedule."""
    rate_per_stream: float | None = Field(None, gt=0)
    """Open loop: requests per second are this × C."""
    seed: int = 0
    """Of the prompts; --seed replaces it."""
    max_common_prefix: int = Field(8, ge=0, le=1_000)
    """Longest shared prefix, in tokens, of any two prompts."""

    @model_validator(mode="after")
    def _open_loop_has_a_rate(self) -> Self:
        if (self.arrival == "closed") != (self.rate_per_stream is None):
            raise ValueError(f"arrival {self.arrival!r} and rate_per_stream {self.rate_per_stream} do not go together")
        if self.start == "staggered" and (self.arrival != "closed" or self.warmup_per_stream < 1):
            raise ValueError("start 'staggered' needs arrival 'closed' and warmup_per_stream of 1 or more")
        return self

    def requests(self, concurrency: int) -> int:
        """Timed requests of a leg at `concurrency` (1 up): always a multiple of it, so that no stream sends fewer."""
        return concurrency * max(self.requests_per_stream, -(-self.min_requests_per_leg // concurrency))

    def warmup_output_tokens(self, concurrency: int) -> tuple[int, ...]:
        """Tokens of each warm-up request of a leg, in sending order: output_tokens, but for the last of each stream in
        a staggered start. Those are spread evenly from half to one and a half of it: as much work, and a turn for each
        stream. Where no prompt waits for another, even the longest ends before a stream that began timed requests is
        through with its first."""
        count, tokens = concurrency * self.warmup_per_stream, self.output_tokens
        if self.start == "together":
            return (tokens,) * count
        last = tuple(max(1, tokens * (concurrency + 2 * k + 1) // (2 * concurrency)) for k in range(concurrency))
        return (tokens,) * (count - concurrency) + last


class Protocol(Table):
    """How it is measured and judged."""

    concurrency: tuple[int, ...] = (1, 2, 4, 8)
    """Levels C, distinct; each is measured on its own. A level left out on the command line is reported."""
    repetitions: int = Field(3, ge=1, le=100)
    """Legs of each arm at each level."""
    extra_blocks: int = Field(0, ge=0, le=20)
    """Pre-declared ABBA blocks of two more repetitions, run only at levels that the planned ones leave undecided."""
    residency: Literal["both", "alternate"] = "both"
    """both: two warm servers, one of them idle; alternate: one at a time, started anew for each block."""
    floor: float = Field(1.0, gt=0)
    """What a ratio must reach, the band's slack allowed; 1 is "at least as good"."""
    band: float = Field(0.01, ge=0, lt=1)
    """Slack below the floor, a share: the contract's, whatever the host's noise; more than 1 % does not bind."""
    max_spread: float = Field(0.05, gt=0)
    """(max − min) / median of an arm's repetitions above which a cell is VOID, unless the candidate was ahead by more
    than this and than they differed (verdict.md, step 1b)."""
    primary: tuple[str, ...] = ("output_throughput", "tpot_median_ms", "ttft_median_ms")
    """Axes that decide the verdict (metrics.md); all others are observations."""
    may_differ: tuple[Literal["enable_chunked_prefill", "max_num_batched_tokens"], ...] = ()
    """Settings in which each arm keeps its own best; any other difference voids the run, or keeps it from binding."""
    near_tie_nats: float = Field(0.25, ge=0)
    """How far the oracle may prefer its own token and the candidate's still be a near tie; the bound's floor."""
    oracle_repeats: int = Field(1, ge=0, le=20)
    """Untimed runs by the oracle of the first repetition's prompts at each level: does it agree with itself?"""
    second_look_s: float = Field(300.0, ge=0)
    """Time for sending both arms' answers back to it and for those runs, after the timed legs; the rest is left out."""
    ready_timeout_s: float = Field(900.0, gt=0)
    """How long a server may take to start."""
    request_timeout_s: float = Field(600.0, gt=0)
    """How long one request may take."""

    @model_validator(mode="after")
    def _levels(self) -> Self:
        if not self.primary:
            raise ValueError("primary names no axis: nothing would decide the verdict")
        if not self.concurrency or min(self.concurrency) < 1 or len(set(self.concurrency)) < len(self.concurrency):
            raise ValueError(f"concurrency {list(self.concurrency)} must be distinct numbers from 1 up")
        return self


class CandidateTable(Table):
    """What is judged."""

    kind: str = "engine"
    """"engine", a command line with {model} {port} {host}, or an http:// URL that is already serving."""
    args: tuple[Word, ...] = ()
    """More arguments for its command line."""
    env: dict[Annotated[str, Field(pattern=NAME_OF_VARIABLE)], Word] = {}
    """Environment variables of its own; of the caller's it gets an allow-list."""


class OracleTable(Table):
    """What it is judged against."""

    kind: str = "vllm"
    """"vllm" is the pinned one and the only one that binds; else as for the candidate."""
    platform: Literal["cpu", "cuda"] = "cuda"
    """Which of the two pins."""
    kv_cache_bytes: int | None = Field(None, gt=0)
    """What vLLM may take for KV cache and states; None: its share of the device. Our engine takes what max_num_seqs ×
    max_model_len needs: set it to the same, or memory is not compared at equal capacity."""
    args: tuple[Word, ...] = ()
    """More arguments for its command line."""
    env: dict[Annotated[str, Field(pattern=NAME_OF_VARIABLE)], Word] = {}
    """Environment variables of its own; of the caller's it gets an allow-list."""


class Recipe(Table):
    """One gated model: what is measured, how, and against what."""

    schema_version: Literal[1]
    """Of the format."""
    name: str = Field(pattern=NAME)
    """Part of a run's folder name, and the model's name in requests."""
    description: str = ""
    """For `gate recipe list`."""
    gpu: bool = True
    """False: no GPU is locked or sampled; the host is the device."""
    max_model_len: int = Field(4096, ge=2, le=2 * MOST_TOKENS)
    """Prompt and output tokens of one request; set on both arms."""
    max_num_seqs: int = Field(32, ge=1, le=4_096)
    """Requests a server runs at once, at least the highest level; set on both arms."""
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8"] = "auto"
    """Set on both arms."""
    checkpoint: Checkpoint
    workload: Workload = Workload()
    protocol: Protocol = Protocol()
    candidate: CandidateTable = CandidateTable()
    oracle: OracleTable = OracleTable()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        need = self.workload.prompt_tokens + self.workload.output_tokens
        if need > self.max_model_len:
            raise ValueError(f"prompt_tokens + output_tokens is {need}, max_model_len only {self.max_model_len}")
        if self.workload.start == "staggered":
            self._fits_staggered()
        if max(self.protocol.concurrency) > self.max_num_seqs:
            top = max(self.protocol.concurrency)
            raise ValueError(f"concurrency {top} is above max_num_seqs {self.max_num_seqs}; requests would queue")
        return self

    def _fits_staggered(self) -> None:
        levels, load = self.protocol.concurrency, self.workload
        longest = max(load.warmup_output_tokens(c)[-1] for c in levels)
        if load.prompt_tokens + longest > self.max_model_len:
            raise ValueError(
                f"a staggered start has warm-up requests of {load.prompt_tokens} + {longest} tokens, "
                f"max_model_len is only {self.max_model_len}"
            )
        # Where prompts queue, the first stream's only request is over before the last stream's begins.
        single = [c for c in levels if c > 1 and load.requests(c) < 2 * c]
        if single:
            raise ValueError(
                f"a staggered start with one request a stream at concurrency {single[0]}: not all streams would be "
                f"under way at once; requests_per_stream must be 2 or more"
            )
        least = STEPS_PER_TURN * max(levels)
        if load.output_tokens < least:
            raise ValueError(
                f"a staggered start at concurrency {max(levels)} with output_tokens {load.output_tokens}, expected "
                f"{least} or more: so many of a request's gaps would hold another's prefill that its median may too"
            )


def names(folder: Path = RECIPES) -> tuple[str, ...]:
    """Names of the recipes that come with the project, sorted."""
    return tuple(sorted(p.stem for p in folder.glob("*.toml")))


def load(name_or_path: str, folder: Path = RECIPES) -> Recipe:
    """Recipe by name (recipes/NAME.toml) or by the path of a TOML file.

    Raises:
        UsageError: no such recipe, not TOML, an unknown key, a wrong type or range; one line.
    """
    is_path = name_or_path.endswith(".toml") or "/" in name_or_path
    path = Path(name_or_path) if is_path else folder / f"{name_or_path}.toml"
    if not path.is_file():
        known = names(folder)
        raise UsageError(
            f"no recipe {name_or_path!r}",
            expected="one of " + ", ".join(known) if known else "a TOML file",
            hint=_nearest(name_or_path, known) or "gate recipe list shows them",
        )
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", hint="correct that line") from error
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    return parse(data, str(path))


def find(model: str, folder: Path = RECIPES) -> Recipe:
    """The recipe whose checkpoint is this hub id or folder.

    Raises:
        UsageError: no recipe has it; the message names the checkpoints that have one.
    """
    wanted = Path(model).resolve()
    known: dict[str, str] = {}
    for name in names(folder):
        recipe = load(name, folder)
        checkpoint = recipe.checkpoint
        if model == checkpoint.hub or (checkpoint.path is not None and wanted == (ROOT / checkpoint.path).resolve()):
            return recipe
        known[checkpoint.hub or checkpoint.path or ""] = name
    raise UsageError(
        f"no recipe for model {model!r}",
        expected="one of " + ", ".join(sorted(known)) if known else "a recipe with that checkpoint",
        hint=_nearest(model, known) or "write a recipe with that checkpoint and pass it as --recipe FILE.toml",
    )


def parse(data: dict[str, Any], source: str) -> Recipe:
    """Recipe from parsed TOML; `source` opens the error message."""
    try:
        return Recipe.model_validate(_frozen(data))
    except ValidationError as error:
        hint = f"gate recipe check {source} tries again" if source.endswith(".toml") else ""
        raise UsageError(f"{source}: {_explain(error)}", hint=hint) from error


def override(
    recipe: Recipe,
    *,
    concurrency: tuple[int, ...] | None = None,
    repetitions: int | None = None,
    residency: str | None = None,
    candidate: str | None = None,
    oracle: str | None = None,
    seed: int | None = None,
    both: Literal["candidate", "oracle"] | None = None,
) -> Recipe:
    """The recipe with the command line's choices in it, validated again; None leaves a value as it is.

    Another candidate or oracle starts without the recipe's extra arguments, which were meant for the recipe's own.
    both: the other arm becomes this one, with all of its own.
    """
    data = recipe.model_dump()
    changes: list[tuple[str, str, Any]] = [
        ("protocol", "concurrency", concurrency),
        ("protocol", "repetitions", repetitions),
        ("protocol", "residency", residency),
        ("candidate", "kind", candidate),
        ("oracle", "kind", oracle),
        ("workload", "seed", seed),
    ]
    for table, key, value in changes:
        if value is None:
            continue
        if key == "kind" and data[table]["kind"] != value:
            data[table] |= {"args": (), "env": {}}
        data[table][key] = value
    if both is not None:
        other = "oracle" if both == "candidate" else "candidate"
        data[other] |= {key: data[both][key] for key in ("kind", "args", "env")}
    return parse(data, "command line")


def _frozen(value: Any) -> Any:
    """TOML's arrays as tuples, which is what strict validation takes for them."""
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return value


def _explain(error: ValidationError) -> str:
    """The first mistake in one line: table and key, what was found, the nearest known name."""
    first = error.errors()[0]
    *tables, key = [str(part) for part in first["loc"]] or [""]
    where = f"in [{'.'.join(tables)}]" if tables else "at the top"
    if first["type"] == "extra_forbidden":
        table = _table(tables)
        guess = _nearest(key, table.model_fields) or "known: " + ", ".join(table.model_fields)
        return f"unknown key {key!r} {where}; {guess}"
    if first["type"] == "missing":
        return f"key {key!r} {where} is missing"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"[{'.'.join([*tables, key])}] {message}" if key else message
    return f"{key} = {first['input']!r} {where}: {message[0].lower()}{message[1:]}"


def _table(path: list[str]) -> type[BaseModel]:
    """The model of a table by its dotted path."""
    table: type[BaseModel] = Recipe
    for part in path:
        annotation = table.model_fields[part].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            table = annotation
    return table


def _nearest(name: str, known: typing.Iterable[str]) -> str:
    """ "did you mean …?", or an empty string when nothing is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""
