"""A model of the hardware, and `play`, which runs a scheduler on it and checks what must hold.

The model keeps KV in a dict by (block, offset) and recurrent state in a dict by slot, both full of garbage at the
start and never cleaned by anybody but the scheduler's orders. State is a hash chain of the tokens fed to it; KV entries
carry that chain, so they too belong to exactly one prefix. A token is a function of all KV read through the block table
and of the state: any stale, foreign or missing entry changes it. What each request should generate is computed
without scheduler, pools or model, from the request alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.batch import UNKNOWN, Batch, Delivery, Sampled, Segment, StepOutput
from engine.cache.blocks import BlockPool
from engine.cache.states import StatePool
from engine.config import EngineConfig, ModelConfig, SchedulerConfig
from engine.request import FinishReason, Request, SamplingParams, Status
from engine.scheduler import RequestRefused, Scheduler

VOCAB = 13
EOS = frozenset({0})
EMPTY_STATE = 1


def _mix(*values: int) -> int:
    return hash(values) & (2**61 - 1)


def _choose(kv: Sequence[int], state: int, params: SamplingParams, eos_ids: frozenset[int], generated: int) -> int:
    token = _mix(state, *kv) % VOCAB
    return 1 + token % (VOCAB - 1) if generated < params.min_tokens and token in eos_ids else token


def alone(request: Request) -> tuple[list[int], FinishReason]:
    """What the request generates with the machine to itself."""
    params, output = request.params, list[int]()
    state, kv = EMPTY_STATE, list[int]()
    feed = list(request.prompt_ids)
    while True:
        for token in feed:
            state = _mix(state, token)
            kv.append(_mix(state, len(kv)))
        token = _choose(kv, state, params, request.eos_ids, len(output))
        output.append(token)
        stops = set(params.stop_token_ids) | (set() if params.ignore_eos else request.eos_ids)
        if len(output) >= params.min_tokens and token in stops:
            return output, FinishReason.STOP
        if len(output) == params.max_tokens:
            return output, FinishReason.LENGTH
        feed = [token]


class Model:
    """A runner that has only memory."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.kv: dict[tuple[int, int], tuple[str, int, int, int]] = {}
        self.state: dict[int, int] = {}
        self.foreign_reads: list[str] = []

    def run(self, batch: Batch) -> StepOutput:
        return StepOutput(batch.step, tuple(map(self._run_segment, batch.segments)))

    def _run_segment(self, segment: Segment) -> Sampled:
        state = EMPTY_STATE if segment.zero_state else self.state.get(segment.state_slot, -segment.state_slot)
        for position, token in enumerate(segment.token_ids, segment.position):
            state = _mix(state, token)
            self.kv[self._place(segment, position)] = segment.request_id, position, token, _mix(state, position)
        self.state[segment.state_slot] = state
        if not segment.sample:
            return Sampled(segment.request_id, None)
        sequence = [*segment.prompt_ids, *segment.output_ids]
        read = [
            self.kv.get(self._place(segment, position), ("nobody", -1, -1, -1)) for position in range(len(sequence))
        ]
        self.foreign_reads += [
            f"{segment.request_id} position {position} reads {entry[:3]}"
            for position, entry in enumerate(read)
            if entry[:3] != (segment.request_id, position, sequence[position])
        ]
        kv = [entry[3] for entry in read]
        return Sampled(segment.request_id, _choose(kv, state, segment.params, segment.eos_ids, len(segment.output_ids)))

    def _place(self, segment: Segment, position: int) -> tuple[int, int]:
        return segment.block_ids[position // self.block_tokens], position % self.block_tokens


@dataclass(frozen=True)
class Arrival:
    at_step: int
    prompt: tuple[int, ...]
    params: SamplingParams
    abort_at: int | None = None
    """Step at which it is aborted, if it lives that long."""
    abort_in_flight: bool = False
    """Abort between schedule() and update() of that step, instead of before it."""


@dataclass(frozen=True)
class Trace:
    block_tokens: int
    num_blocks: int
    max_num_seqs: int
    extra_budget: int
    arrivals: tuple[Arrival, ...]
    ahead: bool = False
    """Whether steps are submitted before the one in flight is booked, where the scheduler gives one."""

    @property
    def config(self) -> EngineConfig:
        limits = SchedulerConfig(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_seqs + self.extra_budget,
            max_model_len=64,
        )
        return EngineConfig(ModelConfig(Path("model")), scheduler=limits)


@dataclass
class Outcome:
    scheduler: Scheduler
    requests: dict[str, Request] = field(default_factory=dict)
    refused: int = 0
    steps: int = 0
    ahead: int = 0
    """Steps that were scheduled while another was in flight."""


def play(trace: Trace, make: type[Scheduler] = Scheduler, make_blocks: type[BlockPool] = BlockPool) -> Outcome:
    """Run a trace to its end and check, at every step and at the end, all that must hold."""
    blocks = make_blocks(trace.num_blocks, trace.block_tokens)
    states = StatePool(trace.max_num_seqs)
    scheduler = make(trace.config, blocks, states)
    model = Model(trace.block_tokens)
    outcome = Outcome(scheduler)
    received: dict[str, list[int]] = {}
    ended: dict[str, FinishReason] = {}
    arrivals = list(enumerate(trace.arrivals))
    # The oldest request advances by a token each step, so all work fits into as many steps as there are tokens.
    longest_wait = sum(len(a.prompt) + a.params.max_tokens for a in trace.arrivals)
    # A step that nothing follows takes a second turn to be booked.
    turns = 2 if trace.ahead else 1
    step_limit = turns * longest_wait + max((a.at_step for a in trace.arrivals), default=0) + 1

    def deliver(delivery: Delivery | None) -> None:
        if delivery is None:
            return
        assert delivery.request_id not in ended, f"{delivery.request_id} was delivered to after its end"
        received[delivery.request_id] += delivery.token_ids
        if delivery.finish_reason is not None:
            ended[delivery.request_id] = delivery.finish_reason

    def abort(step: int, in_flight: bool) -> None:
        for name, request in enumerate(trace.arrivals):
            if request.abort_at == step and request.abort_in_flight is in_flight:
                deliver(scheduler.abort(f"r{name}"))

    clock = 0
    pending: tuple[Batch, StepOutput] | None = None
    while arrivals or scheduler.has_work():
        assert clock <= step_limit, f"starved: {[r.id for r in scheduler.running]} {[r.id for r in scheduler.waiting]}"
        for name, arrival in [a for a in arrivals if a[1].at_step <= clock]:
            request = Request(f"r{name}", arrival.prompt, arrival.params, EOS)
            try:
                scheduler.add(request)
            except RequestRefused:
                outcome.refused += 1
                tokens = len(arrival.prompt) + arrival.params.max_tokens
                assert tokens > 64 or tokens - 1 > trace.num_blocks * trace.block_tokens
            else:
                outcome.requests[request.id], received[request.id] = request, []
        arrivals = [a for a in arrivals if a[1].at_step > clock]
        abort(clock, in_flight=False)
        ready = [r for r in scheduler.running if r.computed_tokens and r.total_tokens - r.computed_tokens == 1]
        submitted: tuple[Batch, StepOutput] | None = None
        if pending is None:
            batch = scheduler.schedule()
            if batch is not None:
                _check_batch(batch, scheduler, ready)
                submitted = batch, model.run(batch)
        elif (batch := scheduler.schedule_ahead()) is not None:
            _check_ahead(batch, pending[0], scheduler)
            submitted = batch, model.run(_resolved(batch, pending[1]))
            outcome.ahead += 1
        outcome.steps += submitted is not None
        abort(clock, in_flight=True)
        booked, pending = (pending, submitted) if trace.ahead else (submitted, None)
        if booked is not None:
            for delivery in scheduler.update(*booked):
                deliver(delivery)
        clock += 1

    assert not model.foreign_reads, f"foreign KV: {model.foreign_reads[0]}"
    for name, request in outcome.requests.items():
        tokens, reason = alone(request)
        aborted = ended[name] is FinishReason.ABORT
        assert received[name] == request.output_ids, f"{name} was delivered other tokens than it generated"
        expected = tokens[: len(request.output_ids)] if aborted else tokens
        assert request.output_ids == expected, f"{name} generated other tokens than alone"
        assert aborted or ended[name] is reason
    assert blocks.num_free == blocks.num_blocks, "KV blocks leaked"
    assert states.num_free == states.num_slots, "state slots leaked"
    _check_counters(outcome, ended)
    return outcome


def _check_batch(batch: Batch, scheduler: Scheduler, ready: list[Request]) -> None:
    limits, running, segments = scheduler.limits, scheduler.running, batch.segments
    assert 0 < batch.num_tokens <= limits.max_num_batched_tokens, "token budget exceeded"
    assert len(segments) <= len(running) <= limits.max_num_seqs
    ages = [int(r.id[1:]) for r in (*running, *scheduler.waiting)]
    assert ages == sorted(ages), f"not first come, first served: {ages}"
    by_id = {segment.request_id: segment for segment in segments}
    assert running[0].id in by_id, "the oldest request does not advance"
    for request in ready:
        if request.status is Status.RUNNING and request.id not in by_id:
            assert request is running[-1], f"{request.id} was ready to decode and got no token"
            assert scheduler.blocks.num_free == 0, f"{request.id} was ready to decode and got no token"
    decoding = [segment.request_id in {r.id for r in ready} for segment in segments]
    assert decoding == sorted(decoding, reverse=True), "decode segments must come first"
    held = [block for request in running for block in request.block_ids]
    assert len(set(held)) == len(held), "two requests share a KV block"
    assert len({segment.state_slot for segment in segments}) == len(segments), "two requests share a state slot"
    for request in running:
        if request.id in by_id:
            segment = by_id[request.id]
            end = segment.position + len(segment.token_ids)
            assert segment.position == request.computed_tokens
            assert segment.token_ids == request.ids(segment.position, end)
            assert len(segment.block_ids) == scheduler.blocks.blocks_for(end)
            assert segment.sample is (end == request.total_tokens), (
                f"sample is wrong at {end} of {request.total_tokens}"
            )


def _check_ahead(batch: Batch, before: Batch, scheduler: Scheduler) -> None:
    """What a step that follows `before` must be, whatever the ids in flight turn out to be."""
    assert not scheduler.waiting, "it makes those who wait wait longer"
    assert scheduler.in_flight == 2
    by_id = {request.id: request for request in scheduler.running}
    for segment in batch.segments:
        request = by_id[segment.request_id]
        assert segment.feed is not None
        source = before.segments[segment.feed]
        assert source.request_id == segment.request_id, "it takes another request's id"
        assert source.sample, "it takes an id that is not sampled"
        assert segment.token_ids == (UNKNOWN,)
        assert segment.position == source.position + len(source.token_ids) == request.total_tokens
        assert len(segment.block_ids) == scheduler.blocks.blocks_for(segment.position + 1)
        assert (segment.state_slot, segment.sample, segment.zero_state) == (request.state_slot, True, False)
        assert len(request.output_ids) + 1 < request.params.max_tokens, "it runs past max_tokens"
    assert len({segment.feed for segment in batch.segments}) == len(batch.segments)


def _resolved(batch: Batch, before: StepOutput) -> Batch:
    """The ids of `before` in place of UNKNOWN, as a device has them."""

    def known(segment: Segment) -> Segment:
        assert segment.feed is not None
        token = before.sampled[segment.feed].token_id
        assert token is not None
        return replace(segment, token_ids=(token,), output_ids=(*segment.output_ids, token))

    return replace(batch, segments=tuple(map(known, batch.segments)))


def _check_counters(outcome: Outcome, ended: dict[str, FinishReason]) -> None:
    stats, requests = outcome.scheduler.stats(), outcome.requests.values()
    assert (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0.0)
    assert stats.steps == outcome.steps
    assert stats.preemptions == sum(r.preemptions for r in requests)
    assert stats.generation_tokens == sum(len(r.output_ids) for r in requests)
    assert stats.prompt_tokens == sum(len(r.prompt_ids) for r in requests if r.output_ids)
    assert stats.finished == {reason: sum(e is reason for e in ended.values()) for reason in FinishReason}
    assert len(ended) == len(outcome.requests), "a request neither finished nor was aborted"


def crowd(*, abort_every: int | None = None, ahead: bool = False) -> Trace:
    """Twelve requests of uneven length in a pool that holds about two and a half of them."""
    return Trace(
        ahead=ahead,
        block_tokens=2,
        num_blocks=26,
        max_num_seqs=4,
        extra_budget=3,
        arrivals=tuple(
            Arrival(
                at_step=index // 2,
                prompt=tuple((index * 5 + offset * 3) % VOCAB for offset in range(3 + index % 7)),
                params=SamplingParams(max_tokens=14 + index % 5, ignore_eos=True),
                abort_at=index + 4 if abort_every and index % abort_every == 0 else None,
                abort_in_flight=index % 2 == 0,
            )
            for index in range(12)
        ),
    )
