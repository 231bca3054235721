"""4 Ports: whether a server could listen there, and who does."""

from __future__ import annotations

import socket

import psutil


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now; an earlier one's closed connections (TIME_WAIT) do not count."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def holder(port: int) -> str:
    """ " by pid 12 (name)" where the system tells, else nothing."""
    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
            if listens and connection.pid:
                return f" by pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        return ""
    return ""
