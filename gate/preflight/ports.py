"""3 The ports of the arms that we start are free; what already listens there would be measured instead."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from gate.arm.ports import holder, port_is_free
from gate.errors import PreconditionError
from gate.observe.rows import Finding
from gate.plan import Plan


def check(plan: Plan, _out: Path) -> tuple[Finding, ...]:
    """Raises PreconditionError that names who listens, where the system tells."""
    for arm in (plan.candidate, plan.oracle):
        if arm.argv is None:
            continue
        address = urlsplit(arm.url)
        host, port = address.hostname or "127.0.0.1", address.port or 80
        if not port_is_free(host, port):
            raise PreconditionError(
                f"port {port} of the {arm.arm} is taken{holder(port)}", expected="a free port", hint="use --port"
            )
    return ()
