"""0 `gate model`: arguments and help; no logic."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(name="model", help="Checkpoints, from their headers.", no_args_is_help=True)
WHAT = "Folder, or hub id in the local cache; @REVISION if need be."


@app.callback()
def _root() -> None:
    """Checkpoints, from their headers."""


@app.command("diff")
def model_diff(
    first: Annotated[str, typer.Argument(help=WHAT)],
    second: Annotated[str, typer.Argument(help=WHAT)],
    every: Annotated[bool, typer.Option("--all", help="What is alike too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, sizes in bytes.")] = False,
) -> None:
    """What two checkpoints quantise differently.

    Module by module, with KV scheme, settings and sizes; no weight is read. Exit code 0 alike, 1 different.
    """
    from gate.headers.find import find
    from gate.headers.read import read
    from gate.modeldiff.compare import compare
    from gate.modeldiff.text import render
    from gate.shell import tell

    made = compare(read(find(first)), read(find(second)), (first, second))
    tell(made.model_dump_json(indent=1) if as_json else render(made, every=every))
    raise typer.Exit(made.exit_code)
