"""0 `gate recipe`: arguments and help; no logic."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(name="recipe", help="The gated models.", no_args_is_help=True)


@app.command("list")
def recipe_list() -> None:
    """Every recipe of the project."""
    from gate.listing import recipes_text

    typer.echo(recipes_text())


@app.command("show")
def recipe_show(name: Annotated[str, typer.Argument(help="Name or TOML file.")]) -> None:
    """A recipe with every default, as TOML.

    Saved to a file it can be changed and run: gate run --recipe FILE.toml
    """
    from gate.listing import recipe_toml
    from gate.recipe import load

    typer.echo(recipe_toml(load(name)), nl=False)


@app.command("check")
def recipe_check(names: Annotated[list[str], typer.Argument(help="Names or TOML files.")]) -> None:
    """Read recipes strictly.

    The first mistake is one line and exit code 64.
    """
    from gate.recipe import load

    for name in names:
        typer.echo(f"{name}: {load(name).name} is well-formed")
