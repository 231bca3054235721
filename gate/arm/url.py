"""4 A server that somebody else started: nothing is started or stopped; what it is comes over HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from gate.arm import Seat
from gate.arm.process import answers
from gate.errors import ArmError, UsageError
from gate.observe.rows import START_UNTOLD
from gate.observe.server import start_time
from gate.plan import ArmPlan

FIRST_ANSWER_S = 10.0
"""An attached server is said to be serving already; it does not get the whole start-up time."""


@dataclass(frozen=True, slots=True)
class Attached:
    plan: ArmPlan

    @property
    def url(self) -> str:
        return self.plan.url

    @property
    def pid(self) -> int | None:
        return None

    @property
    def start_id(self) -> str:
        """Read anew each time: a restart between two legs shows."""
        started = start_time(self.url)
        return START_UNTOLD if started is None else f"{START_UNTOLD}@{started:.3f}"

    @property
    def logged(self) -> Mapping[str, str]:
        """Its log is somebody else's."""
        return {}

    def alive(self) -> bool:
        return answers(self.url)

    def stop(self) -> None:
        """Left as it was found."""


def plan(url: str, seat: Seat) -> ArmPlan:
    """
    Raises:
        UsageError: not the address of a server, or one with a password in it, which every report would show.
    """
    try:
        parts = urlsplit(url)
        whole = bool(parts.hostname) and parts.port != 0 and not parts.query and not parts.fragment
    except ValueError:
        whole = False
    if not whole:
        raise UsageError(f"the {seat.arm}'s URL is {url!r}", expected="http://HOST:PORT, or https://…")
    if "@" in parts.netloc:
        raise UsageError(f"the {seat.arm}'s URL has a user name or password in it", hint="attach it without")
    return ArmPlan(
        arm=seat.arm,
        kind="url",
        argv=None,
        env={},
        url=url.rstrip("/").removesuffix("/v1"),
        model="",
        checkpoint=seat.checkpoint,
        checkpoint_digest=None,
    )


def attach(plan: ArmPlan, ready_timeout_s: float) -> Attached:
    """
    Raises:
        ArmError: nobody answers there.
    """
    deadline = time.monotonic() + min(ready_timeout_s, FIRST_ANSWER_S)
    while not answers(plan.url):
        if time.monotonic() > deadline:
            raise ArmError(f"no answer from {plan.url}", expected="a ready server", hint="start it, then run again")
        time.sleep(0.2)
    return Attached(plan)
