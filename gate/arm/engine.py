"""4 Our engine as an arm: its command line. The gate never imports it."""

from __future__ import annotations

import sys

from gate.arm import HOST, Seat
from gate.plan import ArmPlan
from gate.recipe import Recipe


def plan(seat: Seat, recipe: Recipe) -> ArmPlan:
    """`python -m engine serve` of this interpreter; -P keeps another folder named engine out of the way."""
    argv = [sys.executable, "-P", "-m", "engine", "serve", seat.checkpoint, "--host", HOST, "--port", str(seat.port)]
    argv += ["--served-model-name", recipe.name, "--max-model-len", str(recipe.max_model_len)]
    argv += ["--max-num-seqs", str(recipe.max_num_seqs), "--kv-cache-dtype", recipe.kv_cache_dtype]
    argv += ["--device", "cuda" if recipe.gpu else "cpu", *seat.args]
    return ArmPlan(
        arm=seat.arm,
        kind="engine",
        argv=tuple(argv),
        env=seat.env,
        url=seat.url,
        model=recipe.name,
        checkpoint=seat.checkpoint,
        checkpoint_digest=seat.digest,
    )
