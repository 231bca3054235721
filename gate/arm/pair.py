"""4 Both arms' servers over a whole run: started as the plan's residency wants, restarted once, always stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from gate import messages
from gate.arm import Server, start, starts, startup
from gate.arm.process import GUARD, ServerProcess
from gate.errors import ArmError
from gate.interrupt import deferred
from gate.lock import cards
from gate.observe import gpu
from gate.observe.rows import ARMS, Arm, LegRow, StartRow
from gate.plan import Plan, PlannedLeg
from gate.units import gib
from oracle.verify import verify_running

MAX_RESTARTS = 1
"""Per arm: one crash may be an accident; a second one ends the run, with everything measured so far kept."""
GPU_RETURN_S = 60.0
GPU_RETURN_SLACK_BYTES = 2**30
"""The driver frees a dead process's memory lazily, and keeps some of its own; a leaked context is larger than this."""


class Pair:
    """`with Pair(plan, logs, say) as pair: server = pair.ready(leg)`; leaving it stops whatever runs."""

    def __init__(
        self,
        plan: Plan,
        logs: Path,
        say: Callable[[str], None],
        locks: tuple[int, ...] = (),
        note_start: Callable[[StartRow], None] = lambda _row: None,
        on_ready: Callable[[Arm, Server], None] = lambda _arm, _server: None,
        arms: tuple[Arm, ...] = ARMS,
    ) -> None:
        """locks: descriptors of the devices' locks, held on by the watcher until no server of a killed gate lives.
        note_start: told of each start of a server. on_ready: called before anything else is asked of it.
        arms: the one that there is where there is only one.
        """
        GUARD.keep = locks
        self._plan = plan
        self._logs = logs
        self._say = say
        self._note_start = note_start
        self._on_ready = on_ready
        self._arms = arms
        self._starts: dict[Arm, StartRow] = {}
        self._servers: dict[Arm, Server] = {}
        self._block: dict[Arm, int] = {}
        """Repetition an arm's server was started for; matters with one server at a time."""
        self._restarts: dict[Arm, int] = dict.fromkeys(ARMS, 0)
        self._broken: dict[Arm, str] = {}
        # What others hold on the rest of the machine comes and goes.
        self._cards = cards(plan)
        self._gpu_before = gpu.used_bytes(self._cards)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops both. A fault in that is only said where another error is under way, which is the cause to end on."""
        with deferred():
            if isinstance(error, KeyboardInterrupt):
                self._say(messages.INTERRUPTED)  # first: stopping can take half a minute; a second Ctrl-C cuts it short
            try:
                self.stop_all()
            except ArmError as problem:
                if error is None:
                    raise
                self._say(str(problem))

    def ready(self, leg: PlannedLeg) -> Server:
        """The leg's server, ready; the other one warm beside it, or gone.

        Raises ArmError when a server cannot be started, or broke again after its restart; OracleError when a vLLM is
        not the pinned one by what it reports.
        """
        broken = self._broken.pop(leg.arm, None)
        if broken is not None:
            self._restart(leg, broken)
        if self._plan.recipe.protocol.residency == "both":
            for arm in sorted(self._arms, key=lambda arm: arm != self._plan.coin):
                self._ensure(arm, leg.repetition)
        else:
            for arm in [arm for arm in self._servers if (arm, self._block[arm]) != (leg.arm, leg.repetition)]:
                self._stop(arm)
            self._ensure(leg.arm, leg.repetition)
            self._block[leg.arm] = leg.repetition
        return self._servers[leg.arm]

    def oracle(self) -> Server:
        """The oracle alone is enough for its opinions."""
        return self.alone("oracle")

    def alone(self, arm: Arm) -> Server:
        """One arm's server, ready; the other may be gone."""
        other: Arm = "oracle" if arm == "candidate" else "candidate"
        if self._plan.recipe.protocol.residency == "alternate" and other in self._servers:
            self._stop(other)
        self._ensure(arm, 0)
        self._block.setdefault(arm, 0)
        return self._servers[arm]

    def other(self, leg: PlannedLeg) -> str | None:
        """URL of the arm that is up and not under load in this leg."""
        return next((server.url for arm, server in self._servers.items() if arm != leg.arm), None)

    def pids(self) -> tuple[int | None, ...]:
        return tuple(server.pid for server in self._servers.values())

    def available_before_bytes(self, arm: Arm) -> int | None:
        """MemAvailable before the arm was started; None beside another server, whose memory would be in the drop."""
        started = self._starts.get(arm)
        return started.available_before_bytes if started and len(self._servers) == 1 else None

    def gpu_growth_bytes(self, arm: Arm) -> int | None:
        """What its start added to the memory in use on the GPUs."""
        started = self._starts.get(arm)
        return started.gpu_growth_bytes if started else None

    def note(self, row: LegRow) -> None:
        """Look at a finished leg: an arm that died, or answered nothing at all, is not used again as it is."""
        server = self._servers[row.arm]
        if not server.alive():
            self._broken[row.arm] = messages.ARM_DIED
        elif row.failed == row.requests:
            self._broken[row.arm] = messages.ARM_ANSWERS_NOTHING

    def broke(self, arm: Arm, reason: str) -> None:
        """It is not used again as it is."""
        self._broken[arm] = reason

    def stop_all(self) -> None:
        with deferred():
            problems = []
            for arm in list(self._servers):
                try:
                    self._stop(arm)
                except ArmError as error:
                    problems.append(error)
            GUARD.close()
            GUARD.keep = ()  # the locks are closed next, and their numbers will be other files'
            if problems:
                raise problems[0]

    def _ensure(self, arm: Arm, repetition: int) -> None:
        if arm in self._servers:
            return
        plan = self._plan.arm(arm)
        self._say(messages.starting(arm, plan.kind, plan.url, starts.expected_s(self._logs, plan)))
        before = startup.look(plan, self._cards)
        began = time.monotonic()
        server = start(plan, self._logs / f"{arm}.log", self._plan.recipe.protocol.ready_timeout_s)
        self._servers[arm] = server
        self._on_ready(arm, server)
        if plan.argv is not None:
            starts.note(self._logs, plan, time.monotonic() - began)
        if isinstance(server, ServerProcess):
            self._starts[arm] = startup.row(arm, server, before, repetition)
            self._note_start(self._starts[arm])
        if plan.kind == "vllm":
            # What is installed was compared before the start; this is what really answers at the port.
            verify_running(server.url, self._plan.recipe.oracle.platform)

    def _restart(self, leg: PlannedLeg, reason: str) -> None:
        arm = leg.arm
        self._stop(arm)
        if self._restarts[arm] == MAX_RESTARTS:
            raise ArmError(f"the {arm} {reason} again after a restart", hint=f"its log is {self._logs / f'{arm}.log'}")
        self._restarts[arm] += 1
        self._say(messages.restarting(arm, reason))
        self._ensure(arm, leg.repetition)

    def _stop(self, arm: Arm) -> None:
        with deferred():
            server = self._servers.pop(arm, None)
            self._starts.pop(arm, None)
            if server is not None:
                server.stop()
                if not self._servers and server.pid is not None:
                    self._wait_for_gpu_memory(arm)

    def _wait_for_gpu_memory(self, arm: Arm) -> None:
        """With no server left, the GPU must be as empty as before the first one.

        Raises ArmError when it is not: the next leg would be measured beside a leak.
        """
        if self._gpu_before is None:
            return
        deadline = time.monotonic() + GPU_RETURN_S
        while (used := gpu.used_bytes(self._cards) or 0) > self._gpu_before + GPU_RETURN_SLACK_BYTES:
            if time.monotonic() > deadline:
                raise ArmError(
                    f"{gib(used)} of GPU memory in use {GPU_RETURN_S:g} s after the {arm} ended",
                    expected=f"{gib(self._gpu_before)}, as before the first server",
                    hint="nvidia-smi shows who holds it",
                )
            time.sleep(0.2)
