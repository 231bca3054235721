"""0 `gate calibrate-client`: arguments and help; no logic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def calibrate_client(
    streams: Annotated[int, typer.Option(help="Streams at once.", min=1, max=256)] = 8,
    events: Annotated[int, typer.Option(help="Events of each stream.", min=1, max=100_000)] = 300,
    period_ms: Annotated[float, typer.Option(help="Between two events of a stream.", min=0.1, max=1000)] = 10.0,
    cpu: Annotated[int | None, typer.Option(help="Pin the client to this CPU.", min=0)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    out: Annotated[Path | None, typer.Option(help="Keep the figures too: OUT/HOST/client-TIME.json.")] = None,
) -> None:
    """Measure the client's own cost.

    CPU per event and skew, against a loopback server.
    """
    from gate.client import calibrate

    measured = calibrate.calibrate(streams, events, period_ms, cpu)
    if out is not None:
        typer.echo(f"kept in {calibrate.keep(measured, out, period_ms, cpu)}", err=True)
    typer.echo(measured.model_dump_json() if as_json else calibrate.describe(measured))
