"""6 `gate fit`: the question resolved to limits, the answer for each server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gate import recipe as recipes
from gate.errors import UsageError
from gate.fit import amount, largest
from gate.fit.need import OVERHEAD_BYTES, SERVERS, Limits, Need, Server, Weights, need, weights
from gate.fit.record import BY_ESTIMATE, FITS, TOO_LARGE, FitReport, ServerFit
from gate.fit.sizes import KV_BYTES, Sizes, asked_kv_dtype, sizes
from gate.fit.used import used
from gate.headers import find, read
from gate.headers.schemes import modules
from gate.recipe import Recipe
from gate.runs import find as find_run

CONTEXT, MAX_NUM_SEQS = 4096, 1
"""Where neither the command line nor a recipe says: the engine's own default, and the least that is of use."""


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
    resolved, why = asked_kv_dtype(headers) if dtype == "auto" else (dtype, "as asked")
    limits = _limits(asked, recipe, KV_BYTES[resolved])
    if limits.context > model.max_context:
        raise UsageError(
            f"context {limits.context}", expected=f"at most {model.max_context}, the model's max_position_embeddings"
        )
    memory = None if asked.gpu_memory is None else amount.parse(asked.gpu_memory, "--gpu-memory")
    servers = _servers(asked.server)
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
        servers=tuple(_of_server(server, model, held, limits, memory) for server in servers),
        together=recipe is not None and recipe.protocol.residency == "both" and len(servers) > 1,
        run=None if run is None else run.name,
        used=() if run is None else used(run, limits.overhead_bytes),
    )


def _limits(asked: FitAsked, recipe: Recipe | None, kv_bytes: int) -> Limits:
    context = asked.context or (recipe.max_model_len if recipe is not None else CONTEXT)
    sequences = asked.max_num_seqs or (recipe.max_num_seqs if recipe is not None else MAX_NUM_SEQS)
    overhead = OVERHEAD_BYTES if asked.overhead is None else amount.parse(asked.overhead, "--overhead")
    return Limits(
        context=context,
        max_num_seqs=sequences,
        kv_bytes=kv_bytes,
        overhead_bytes=overhead,
        **({} if asked.batched_tokens is None else {"batched_tokens": asked.batched_tokens}),
    )


def _servers(asked: str | None) -> tuple[Server, ...]:
    if asked is None:
        return SERVERS
    for server in SERVERS:
        if asked == server:
            return (server,)
    raise UsageError(f"--server {asked!r}", expected=" or ".join(SERVERS))


def _of_server(server: Server, model: Sizes, held: Weights, limits: Limits, memory: int | None) -> ServerFit:
    def needs(of: Limits) -> Need:
        return need(server, model, held, of)

    wanted = needs(limits)
    if memory is None:
        return ServerFit(server=server, need=wanted)
    return ServerFit(
        server=server,
        need=wanted,
        verdict=FITS if wanted.total <= memory else TOO_LARGE if wanted.exact > memory else BY_ESTIMATE,
        largest_context=largest.largest_context(needs, limits, memory, model.max_context),
        largest_max_num_seqs=largest.largest_max_num_seqs(needs, limits, memory),
    )
