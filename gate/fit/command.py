"""0 `gate fit`: arguments and help; no logic."""

from __future__ import annotations

from typing import Annotated

import typer

from gate.options import RESULTS, OutOption, RecipeOption


def fit(
    recipe: RecipeOption = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Folder, or hub id in the local cache; @REVISION if need be.")
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option("--gpu-memory", help="What the server may take, such as 24GiB or 80GB.")
    ] = None,
    context: Annotated[
        int | None, typer.Option("--context", min=1, help="Tokens of a sequence; left out, the recipe's or 4096.")
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option("--max-num-seqs", min=1, help="Sequences at once; left out, the recipe's or 1.")
    ] = None,
    kv_cache_dtype: Annotated[
        str | None, typer.Option("--kv-cache-dtype", help="auto (as the checkpoint asks), bfloat16 or fp8.")
    ] = None,
    batched_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-num-batched-tokens", min=1, help="Of a prefill step; left out, the recipe's or each server's own."
        ),
    ] = None,
    overhead: Annotated[
        str | None, typer.Option("--overhead", help="CUDA context, libraries, graphs; 1GiB if left out.")
    ] = None,
    server: Annotated[str | None, typer.Option("--server", help="engine or vllm; left out, both.")] = None,
    used: Annotated[str | None, typer.Option("--used", help="A recorded run: what its servers really held.")] = None,
    out: OutOption = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, every size in bytes.")] = False,
) -> None:
    """Whether a model fits a GPU, from its headers alone.

    Weights, KV cache, states and an estimate of the rest. Exit code 0 fits, 1 not, 2 only the estimate is in the way.
    """
    from gate.fit.amount import unit_of
    from gate.fit.flow import FitAsked
    from gate.fit.flow import fit as answer
    from gate.fit.text import render
    from gate.shell import tell

    asked = FitAsked(
        model, recipe, gpu_memory, context, max_num_seqs, kv_cache_dtype, batched_tokens, overhead, server, used
    )
    made = answer(asked, out)
    tell(made.model_dump_json(indent=1) if as_json else render(made, unit_of(gpu_memory)))
    raise typer.Exit(made.exit_code)
