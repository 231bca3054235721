"""4 One arm: from a recipe's word to a server that answers, and away again.

`plan_arm` turns a kind ("engine", "vllm", a command line, a URL) into an ArmPlan; `start` makes it a running Server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gate.observe.rows import Arm

if TYPE_CHECKING:
    from gate.plan import ArmPlan
    from gate.recipe import Recipe

HOST = "127.0.0.1"
KINDS = ("engine", "vllm")
"""Arms that go by a name; any other is a command line or a URL."""

INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES")
"""All a server takes over from the caller. Tuning variables are left out: the timed environment is the planned one."""


@dataclass(frozen=True, slots=True)
class Seat:
    """What an arm is given, whichever kind it is."""

    arm: Arm
    port: int
    checkpoint: str
    """Local folder."""
    digest: str | None
    args: tuple[str, ...]
    inherited: Mapping[str, str]
    """The allow-listed part of the caller's environment."""
    own_env: Mapping[str, str]
    """The recipe's own variables; they win."""
    oracle_installed: bool = True
    """False: the pinned vLLM is not on this machine, and its command line is to be shown alone."""

    @property
    def env(self) -> dict[str, str]:
        return {**self.inherited, **self.own_env}

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


class Server(Protocol):
    """A running arm."""

    @property
    def url(self) -> str: ...
    @property
    def pid(self) -> int | None:
        """None for an attached URL."""

    @property
    def start_id(self) -> str:
        """Changes with every start."""

    @property
    def logged(self) -> Mapping[str, str]:
        """Settings that it wrote into its log at this start; empty for an attached URL."""

    def alive(self) -> bool: ...
    def stop(self) -> None: ...


def allowed(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of the caller's environment that servers get."""
    return {name: environ[name] for name in INHERITED if name in environ}


def plan_arm(kind: str, seat: Seat, recipe: Recipe) -> ArmPlan:
    """Pure: nothing is started or looked up on the network.

    Raises:
        UsageError: a command line that cannot be split, or names a placeholder that does not exist.
    """
    from gate.arm import command, engine, oracle, url

    if kind == "engine":
        return engine.plan(seat, recipe)
    if kind == "vllm":
        return oracle.plan(seat, recipe)
    if kind.startswith(("http://", "https://")):
        return url.plan(kind, seat)
    return command.plan(kind, seat)


def start(plan: ArmPlan, log: Path, ready_timeout_s: float) -> Server:
    """Start the arm and wait until it answers; an attached URL only has to answer.

    Raises:
        ArmError: the port is taken, the server died or never became ready; nothing is left running then.
    """
    from gate.arm import process, url

    if plan.argv is None:
        return url.attach(plan, ready_timeout_s)
    return process.launch(plan, log, ready_timeout_s)
