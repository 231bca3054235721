"""3 The ports of the arms that we start are free; what already listens there would be measured instead."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import psutil

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
        if not free(host, port):
            raise PreconditionError(
                f"port {port} of the {arm.arm} is taken{_by_whom(port)}", expected="a free port", hint="use --port"
            )
    return ()


def free(host: str, port: int) -> bool:
    """A server could listen there now; an earlier one's closed connections (TIME_WAIT) do not count."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def _by_whom(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
            if listens and connection.pid:
                return f" by pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        return ""
    return ""
