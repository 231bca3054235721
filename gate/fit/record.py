"""6 What `gate fit` answers, as data; every size in bytes, what is not known None."""

from __future__ import annotations

from gate.fit.need import Limits, Need, Server, Weights
from gate.fit.sizes import Sizes
from gate.observe.rows import Arm, Row

FITS, TOO_LARGE, BY_ESTIMATE = 0, 1, 2
"""Exit codes, and more: 1 is certain, as weights and caches alone are too much; 2 rests on what is only estimated."""


class ServerFit(Row):
    server: Server
    batched_tokens: int
    """Of its prefill step, which its activations are of."""
    batched_by: str
    """Who says so."""
    need: Need
    verdict: int | None = None
    """One of the three above; None: no memory was named."""
    largest_context: int | None = None
    """At the number of sequences asked for; None: not even one token fits, or no memory was named."""
    largest_max_num_seqs: int | None = None


class Used(Row):
    """One arm of a recorded run, beside what it should have needed under the run's own limits."""

    arm: Arm
    server: str
    """engine, vllm, command, url."""
    checkpoint: str = ""
    """Its own, which need not be the one that is asked about."""
    limits: Limits
    kv_cache_dtype: str
    need: Need | None = None
    """None: another server, whose layout is not known, or its checkpoint is no longer here."""
    weights_bytes: int | None = None
    """Resident, by its own word."""
    pool_bytes: int | None = None
    """KV cache and states that it holds, as it reports them; vLLM may hold more than its limits need."""
    memory_bytes: int | None = None
    """The largest peak of its legs."""
    memory_source: str = ""
    is_gpu: bool = True

    @property
    def rest_bytes(self) -> int | None:
        """What neither weights nor caches explain: activations, scratch, context, libraries, graphs. Of a GPU only."""
        parts = (self.memory_bytes, self.weights_bytes, self.pool_bytes)
        if not self.is_gpu or None in parts:
            return None
        memory, weights, pool = (int(part or 0) for part in parts)
        return memory - weights - pool


class FitReport(Row):
    checkpoint: str
    folder: str
    memory_bytes: int | None
    limits: Limits
    kv_cache_dtype: str
    kv_cache_why: str
    sizes: Sizes
    weights: Weights
    servers: tuple[ServerFit, ...]
    left_out: str | None = None
    """Why the engine is not among the servers, where it was not left out by --server."""
    together: bool = False
    """The recipe keeps both servers on one GPU at once."""
    run: str | None = None
    used: tuple[Used, ...] = ()

    @property
    def exit_code(self) -> int:
        """The worst of the servers'; their exact parts first."""
        codes = {one.verdict for one in self.servers}
        return next((code for code in (TOO_LARGE, BY_ESTIMATE) if code in codes), FITS)
