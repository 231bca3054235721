"""4 The pinned vLLM as an arm; its command line and flags come from oracle/."""

from __future__ import annotations

from gate.arm import Seat
from gate.plan import ArmPlan
from gate.recipe import Recipe
from oracle import serve


def plan(seat: Seat, recipe: Recipe) -> ArmPlan:
    """The command line for the recipe's platform; oracle/ also says which of the caller's variables it gets."""
    held = recipe.oracle.kv_cache_bytes
    capacity = () if held is None else ("--kv-cache-memory-bytes", str(held))
    argv, env = serve.argv(
        platform=recipe.oracle.platform,
        model=seat.checkpoint,
        port=seat.port,
        max_model_len=recipe.max_model_len,
        max_num_seqs=recipe.max_num_seqs,
        kv_cache_dtype=recipe.kv_cache_dtype,
        extra=("--served-model-name", recipe.name, *capacity, *seat.args),
        installed=seat.oracle_installed,
    )
    return ArmPlan(
        arm=seat.arm,
        kind="vllm",
        argv=tuple(argv),
        env={**env, **seat.own_env},
        url=seat.url,
        model=recipe.name,
        checkpoint=seat.checkpoint,
        checkpoint_digest=seat.digest,
    )
