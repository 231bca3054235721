"""6 `gate fit`: the question resolved to limits, the answer for each server."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gate import recipe as recipes
from gate.errors import CheckpointError, UsageError
from gate.fit import amount, largest
from gate.fit.need import OVERHEAD_BYTES, SERVERS, Limits, Need, Server, Weights, need, step, weights
from gate.fit.record import BY_ESTIMATE, FITS, TOO_LARGE, FitReport, ServerFit
from gate.fit.sizes import KV_BYTES, MOST, Sizes, asked_kv_dtype, other_kv_scheme, sizes
from gate.fit.used import used
from gate.headers import find, read
from gate.headers.read import Headers
from gate.headers.schemes import modules
from gate.recipe import Recipe
from gate.runs import find as find_run

CONTEXT, MAX_NUM_SEQS = 4096, 1
"""Where neither the command line nor a recipe says: the engine's own default, and the least that is of use."""
BATCHED = "--max-num-batched-tokens"
ENGINE_ARCHITECTURES = (
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
)
"""Of config.json's `architectures`, the first: what our engine runs (tests hold it against the engine's own list)."""


@dataclass(frozen=True, slots=True)
class FitAsked:
    """A command line, as typed; None is "as the recipe says", or the default."""

    model: str | None = None
    recipe: str | None = None
    gpu_memory: str | None = None
    context: int | None = None
    max_num_seqs: int | None = None
    kv_cache_dtype: str | None = None
    batched_tokens: int | None = None
    overhead: str | None = None
    server: str | None = None
    used: str | None = None


def fit(asked: FitAsked, out: Path) -> FitReport:
    """Raises UsageError, CheckpointError, StorageError: one line each."""
    if (asked.recipe is None) == (asked.model is None):
        raise UsageError("--recipe and --model: exactly one is needed", hint="--model takes a folder or a hub id")
    recipe = recipes.load(asked.recipe) if asked.recipe is not None else None
    headers = read.read(find.of_recipe(recipe) if recipe is not None else find.find(asked.model or ""))
    model, held = sizes(headers), weights(modules(headers))
    dtype = asked.kv_cache_dtype or (recipe.kv_cache_dtype if recipe is not None else "auto")
    if dtype not in ("auto", *KV_BYTES):
        raise UsageError(f"--kv-cache-dtype {dtype!r}", expected="auto, bfloat16 or fp8")
    if dtype == "auto" and (other := other_kv_scheme(headers)) is not None:
        raise CheckpointError(
            f"the configuration asks for a KV cache of {other:.100}",
            expected="fp8, or no scheme",
            hint="--kv-cache-dtype bfloat16 or fp8 answers for that one",
        )
    resolved, why = asked_kv_dtype(headers) if dtype == "auto" else (dtype, "as asked")
    limits = _limits(asked, recipe, KV_BYTES[resolved])
    if limits.context > model.max_context:
        raise UsageError(
            f"context {limits.context}", expected=f"at most {model.max_context}, the model's max_position_embeddings"
        )
    memory = None if asked.gpu_memory is None else amount.parse(asked.gpu_memory, "--gpu-memory")
    limits = limits.model_copy(update={"memory_bytes": memory})
    servers, told = _servers(asked.server, headers), _told(recipe)
    run = None if asked.used is None else find_run(asked.used, out)
    return FitReport(
        checkpoint=asked.model or (recipe.name if recipe is not None else ""),
        folder=str(headers.folder),
        memory_bytes=memory,
        limits=limits,
        kv_cache_dtype=resolved,
        kv_cache_why=why,
        sizes=model,
        weights=held,
        servers=tuple(_of_server(server, model, held, limits, told.get(server)) for server in servers),
        left_out=_not_run(headers) if asked.server is None else None,
        together=recipe is not None and recipe.protocol.residency == "both" and len(servers) > 1,
        run=None if run is None else run.name,
        used=() if run is None else used(run, limits.overhead_bytes),
    )


def _limits(asked: FitAsked, recipe: Recipe | None, kv_bytes: int) -> Limits:
    context = asked.context or (recipe.max_model_len if recipe is not None else CONTEXT)
    sequences = asked.max_num_seqs or (recipe.max_num_seqs if recipe is not None else MAX_NUM_SEQS)
    for option, value, most in (
        ("--max-num-seqs", sequences, largest.MOST_SEQUENCES),
        (BATCHED, asked.batched_tokens or 1, MOST),
    ):
        if value > most:
            raise UsageError(f"{option} {value}", expected=f"at most {most}")
    overhead = OVERHEAD_BYTES if asked.overhead is None else amount.parse(asked.overhead, "--overhead")
    return Limits(
        context=context,
        max_num_seqs=sequences,
        kv_bytes=kv_bytes,
        overhead_bytes=overhead,
        batched_tokens=asked.batched_tokens,
    )


def _told(recipe: Recipe | None) -> dict[str, int]:
    """The steps that a recipe's own arguments give its servers."""
    found: dict[str, int] = {}
    for table in () if recipe is None else (recipe.candidate, recipe.oracle):
        words = [part for word in table.args for part in word.split("=", 1)]
        for option, value in pairwise([*words, ""]):
            if option.replace("_", "-") != BATCHED:
                continue
            if not value.isdecimal() or not 0 < int(value) <= MOST:
                raise UsageError(f"the recipe's {option} {value!r}", expected=f"a number from 1 to {MOST}")
            found[table.kind] = int(value)
    return found


def _servers(asked: str | None, headers: Headers) -> tuple[Server, ...]:
    """Those asked for; left out, those that run the model."""
    why = _not_run(headers)
    if asked is None:
        return SERVERS if why is None else ("vllm",)
    for server in SERVERS:
        if asked == server:
            if server == "engine" and why is not None:
                raise UsageError(f"--server engine: {why}", hint="--server vllm answers for the other")
            return (server,)
    raise UsageError(f"--server {asked!r}", expected=" or ".join(SERVERS))


def _not_run(headers: Headers) -> str | None:
    """Why our engine does not run this model; None where it does."""
    named = headers.config.get("architectures")
    first = named[0] if isinstance(named, list) and named else named
    if first in ENGINE_ARCHITECTURES:
        return None
    return f"it runs {', '.join(ENGINE_ARCHITECTURES)}, and config.json has {first or 'no architectures'!s:.100}"


def _of_server(server: Server, model: Sizes, held: Weights, limits: Limits, told: int | None) -> ServerFit:
    """told: its step by the recipe."""
    if limits.batched_tokens is None and told is not None:
        limits, by = limits.model_copy(update={"batched_tokens": told}), "the recipe's"
    else:
        by = step(server, limits)[1]

    def needs(of: Limits) -> Need:
        return need(server, model, held, of)

    wanted, memory = needs(limits), limits.memory_bytes
    fit = ServerFit(server=server, batched_tokens=step(server, limits)[0], batched_by=by, need=wanted)
    if memory is None:
        return fit
    return fit.model_copy(
        update={
            "verdict": FITS if wanted.total <= memory else TOO_LARGE if wanted.exact > memory else BY_ESTIMATE,
            "largest_context": largest.largest_context(needs, limits, memory, model.max_context),
            "largest_max_num_seqs": largest.largest_max_num_seqs(needs, limits, memory),
        }
    )
