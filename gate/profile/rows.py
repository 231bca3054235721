"""4 The records of a profile. Frozen; the unit is in the field name; what was not measured is None, never 0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from gate.observe.rows import Arm, Finding, Row

Backend = Literal["nsys", "cupti"]
Level = Literal["node", "graph", "none"]
"""node: each kernel of a CUDA graph has a row; graph: a whole graph is one row; none: no kernel at all."""
Role = Literal["measured", "control"]
"""control: the arm that went first, profiled again after the other one. What it moved by is the drift."""

SHORT_TOKENS, LONG_TOKENS = 8, 136
"""Output tokens of the two windows. They differ by 128 decode steps, so a count that is not a multiple of 128 shows."""


class Traced(Row):
    """Both windows of one arm in one role."""

    arm: Arm
    role: Role

    @property
    def text(self) -> str:
        return f"the {self.arm}" if self.role == "measured" else f"the {self.role} of the {self.arm}"


class TracedKernel(Row):
    """All launches of one kernel with one shape in one window."""

    name: str
    """Demangled, as CUPTI reports it; "Memcpy DtoH" and the like for copies and fills."""
    grid: str
    """ "132x1x1"; empty where the trace does not tell."""
    block: str
    launches: int
    us: float
    """Summed over the launches."""
    own_us: float | None = None
    """The same without what an earlier kernel covers: of all kernels together it is busy_us (activity.own)."""


class Window(Row):
    """One window: one arm, one output length, traced from before its first request to after its last."""

    arm: Arm
    role: Role = "measured"
    backend: Backend
    output_tokens: int
    concurrency: int
    rounds: int
    """Each round sends `concurrency` requests at once and waits for all of them."""
    requests: int
    completed: int
    """Those that got exactly output_tokens."""
    prompt_tokens: int
    warmup_ended_ns: int
    start_ns: int
    """Of the window, perf_counter_ns of the gate, like warmup_ended_ns."""
    counted_tokens: int | None = None
    """Prompt and generated tokens that the server counted meanwhile; None where it counts none."""
    level: Level
    busy_us: float | None = None
    """Time in which at least one kernel, copy or fill ran: the union of their intervals."""
    idle_us: float | None = None
    """The rest, from the first one's start to the last one's end."""
    decode_steps: int | None = None
    """NVTX ranges of steps that only decode, where the server marks them (the engine with ENGINE_NVTX=1)."""
    device: str | None = None
    bandwidth_bytes_per_s: float | None = None
    """The device's nominal memory bandwidth, where the trace tells."""
    tool: str
    """Which tool wrote the trace, with its version."""
    kernels: tuple[TracedKernel, ...]


class Wall(Row):
    """Untraced time of both lengths on the same server, in microseconds a round; tracing slows what it traces."""

    short_us: tuple[float, ...]
    long_us: tuple[float, ...]
    short_first_us: tuple[float, ...] = ()
    long_first_us: tuple[float, ...] = ()
    """Of those, from the first send to the last first token: prefill, and whatever an idle server has to do again."""
    gaps_us: tuple[float, ...] = ()
    largest_gaps_us: tuple[float, ...] = ()
    """Median and largest time between two tokens in each long round: a step's time, and what stops once a request."""


class StepKernel(Row):
    """One kernel of one decode step: the difference of the two windows over the steps between them."""

    name: str
    family: str
    rule: str
    """The pattern that put it there; empty for the family "other"."""
    launches: float
    us: float
    own_us: float | None = None
    """Without what overlaps an earlier kernel; None where only sums were recorded."""
    helper: bool = False
    """The second half of another launch (split-K reduction): its time counts, its launches identify no module."""
    modules: tuple[str, ...] = ()
    """What it computes, where its launches say so."""
    nbytes: int | None = None
    """Bytes those modules have to read and write once; None where they are not known."""
    flops: int | None = None
    """2 × weights × batch of those modules, where they are products."""
    shared_bytes: bool = False
    """The bytes are of all the family's kernels together: they make a rate of the family, not of this kernel."""


def total_own_us(kernels: Iterable[StepKernel]) -> float | None:
    """None as soon as one kernel has none: only sums were recorded."""
    known = [kernel.own_us for kernel in kernels]
    return None if None in known else sum(us for us in known if us is not None)


class StepTable(Row):
    """What one arm does in one decode step."""

    arm: Arm
    name: str
    """engine, vllm, a run id …"""
    batch: int
    backend: Backend
    tool: str
    device: str | None = None
    roof_bytes_per_s: float | None = None
    roof_source: str = ""
    steps: int
    wall_us: float | None = None
    """A step without tracing."""
    gap_us: float | None = None
    largest_gap_us: float | None = None
    """Between two tokens of the long untraced rounds: the median of their medians, and the largest."""
    busy_us: float | None = None
    """Kernels' union of intervals: less than their sum where streams or dependent launches overlap."""
    idle_us: float | None = None
    """In which none of them ran, as the trace has it."""
    kernels: tuple[StepKernel, ...]
    notes: tuple[str, ...] = ()
    """How launches were matched to modules, and what was not."""

    @property
    def sum_us(self) -> float:
        return sum(kernel.us for kernel in self.kernels)

    @property
    def own_us(self) -> float | None:
        """Of all kernels, without what overlaps: busy_us, in parts."""
        return total_own_us(self.kernels)

    @property
    def launches(self) -> float:
        return sum(kernel.launches for kernel in self.kernels)


Proof = Literal["launch counts", "same kernels", "by family", "seen idle", "below drift", "unproven"]


class Lever(Row):
    """One part of the delta: what both arms spend on the same modules."""

    name: str
    families: tuple[str, ...]
    modules: tuple[str, ...] = ()
    candidate_us: float
    oracle_us: float
    nbytes: int | None = None
    proof: Proof
    note: str = ""

    @property
    def delta_us(self) -> float:
        """Above 0: the candidate is slower here."""
        return self.candidate_us - self.oracle_us


class Attribution(Row):
    """The delta of a decode step, candidate minus oracle, in parts that add up to it."""

    levers: tuple[Lever, ...]
    """The largest delta first. Of kernels' own times, which do not overlap, where both arms' are known."""
    candidate_us: float
    oracle_us: float
    """A step's wall time; where it was not measured, the kernels' sum."""
    measured: Literal["wall", "kernels"]
    drift: float | None
    """How far equal kernels moved, a share; None without a control."""
    drift_source: str

    @property
    def delta_us(self) -> float:
        return self.candidate_us - self.oracle_us

    @property
    def residual_us(self) -> float:
        """What no lever explains: where idle time was not recorded, that, less what overlapped. Never dropped."""
        return self.delta_us - sum(lever.delta_us for lever in self.levers)


class ProfileReport(Row):
    """attribution.json: everything shown."""

    schema_version: Literal[1] = 1
    run_id: str
    recipe: str
    host: str
    started_at: str
    candidate: StepTable | None
    oracle: StepTable | None
    """None where a finding refuses the table."""
    attribution: Attribution | None
    findings: tuple[Finding, ...] = ()
    ended: str | None = None
    """Why the profile ended early, as it said itself."""
    missing: tuple[Traced, ...] = ()
    """What was to be traced and was not, in order."""
    refused: bool
    """Whether a finding says that there is no step to show."""
