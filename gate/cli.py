"""0 Arguments, help, exit codes; no logic. Commands import what they need, so that --help is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gate import interrupt, shell
from oracle.cli import app as oracle_app

app = typer.Typer(
    name="gate",
    help="Is an LLM engine at least as fast, as small and as right as the pinned vLLM, on this machine, today?",
    epilog="Exit codes: 0 pass, 1 fail, 2 inconclusive, 3 void, 64 usage, 69 something is missing, "
    "70 a fault of the gate itself, 75 lock held, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
recipes_app = typer.Typer(name="recipe", help="The gated models.", no_args_is_help=True)
app.add_typer(recipes_app)
app.add_typer(oracle_app, name="oracle")

RecipeOption = Annotated[str | None, typer.Option("--recipe", help="Name under recipes/, or a TOML file.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="Hub id or folder; finds the recipe that has it.")]
ConcOption = Annotated[str | None, typer.Option("--conc", help="Concurrency levels, such as 1,2,4,8.")]
RepsOption = Annotated[int | None, typer.Option("--reps", help="Repetitions per arm and level.")]
CandidateOption = Annotated[
    str | None,
    typer.Option("--candidate", help='"engine", "vllm", a command line with {model} {port} {host}, or an http:// URL.'),
]
OracleOption = Annotated[str | None, typer.Option("--oracle", help='"vllm" (the pinned one), a command line or a URL.')]
ResidencyOption = Annotated[
    str | None, typer.Option("--residency", help="both: two warm servers; alternate: one at a time.")
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of the prompts.")]
CoinOption = Annotated[str | None, typer.Option("--coin", help="candidate or oracle opens; tossed if not given.")]
PortOption = Annotated[int, typer.Option("--port", help="The candidate's port; the oracle gets the next one.")]
OutOption = Annotated[Path, typer.Option("--out", help="Folder of all results.", show_default="the project's results")]
RunArgument = Annotated[str | None, typer.Argument(help="Run id, its beginning, or a folder; the newest if left out.")]
RESULTS = Path(__file__).resolve().parents[1] / "results"
PORT = 18101


def _print_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        typer.echo(importlib.metadata.version("gate-and-engine"))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Only what comes before a command."""


@app.command()
def run(
    recipe: RecipeOption = None,
    model: ModelOption = None,
    conc: ConcOption = None,
    reps: RepsOption = None,
    candidate: CandidateOption = None,
    oracle: OracleOption = None,
    residency: ResidencyOption = None,
    seed: SeedOption = None,
    coin: CoinOption = None,
    port: PortOption = PORT,
    out: OutOption = RESULTS,
) -> None:
    """Measure two servers in turns and judge.

    Starts both, drives them, reports; the exit code is the verdict.
    """
    from gate.inputs import Asked
    from gate.progress import Ui
    from gate.run import run as run_gate

    asked = Asked(recipe, model, conc, reps, candidate, oracle, residency, seed, coin, port)
    raise typer.Exit(run_gate(asked, out, Ui()))


@app.command()
def plan(
    recipe: RecipeOption = None,
    model: ModelOption = None,
    conc: ConcOption = None,
    reps: RepsOption = None,
    candidate: CandidateOption = None,
    oracle: OracleOption = None,
    residency: ResidencyOption = None,
    seed: SeedOption = None,
    coin: CoinOption = None,
    port: PortOption = PORT,
    as_json: Annotated[bool, typer.Option("--json", help="The plan as a run would store it.")] = False,
) -> None:
    """Print what a run would do; starts nothing.

    Legs in order, both command lines, the plan's id and the command that repeats it.
    """
    from gate.inputs import Asked, again, plan_for
    from gate.listing import plan_text

    asked = Asked(recipe, model, conc, reps, candidate, oracle, residency, seed, coin, port)
    made = plan_for(asked)
    typer.echo(made.model_dump_json(indent=2) if as_json else plan_text(made, again(asked, made)))


@app.command()
def resume(name: RunArgument = None, out: OutOption = RESULTS) -> None:
    """Go on with an interrupted run.

    At its next leg, under the same plan; a run that failed to start begins at leg 1.
    """
    from gate.progress import Ui
    from gate.run import resume as resume_gate
    from gate.runs import find

    raise typer.Exit(resume_gate(find(name, out), Ui()))


@app.command()
def report(name: RunArgument = None, out: OutOption = RESULTS) -> None:
    """Derive a run's report again.

    From its raw records; the exit code is the verdict.
    """
    from gate.conclude import conclude
    from gate.runs import find

    raise typer.Exit(conclude(find(name, out)).exit_code)


@app.command()
def show(
    name: RunArgument = None,
    out: OutOption = RESULTS,
    every: Annotated[bool, typer.Option("--all", help="Every cell, not only the primary ones.")] = False,
) -> None:
    """Print a run's table as it was reported."""
    from gate.conclude import print_table, stored
    from gate.runs import find

    folder = find(name, out)
    print_table(stored(folder), folder, every)


@app.command()
def startup(
    recipe: RecipeOption = None,
    model: ModelOption = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="Drop the checkpoint from the page cache first, proven.")
    ] = False,
    warm: Annotated[
        bool, typer.Option("--warm", help="Read the checkpoint into the page cache first, proven.")
    ] = False,
    reps: RepsOption = None,
    candidate: CandidateOption = None,
    oracle: OracleOption = None,
    coin: CoinOption = None,
    port: PortOption = PORT,
    out: OutOption = RESULTS,
) -> None:
    """Start both servers in turns and judge how long they take.

    From the spawn to the port, to ready, to the first token; the exit code is the verdict on the last.
    """
    from gate.errors import UsageError
    from gate.inputs import Asked
    from gate.progress import Ui
    from gate.startup.flow import run as run_startup

    if cold and warm:
        raise UsageError("--cold and --warm", expected="one of them, or neither: the page cache as it is found")
    asked = Asked(recipe, model, None, reps, candidate, oracle, coin=coin, port=port)
    raise typer.Exit(run_startup(asked, "cold" if cold else "warm" if warm else None, out, Ui()))


@app.command("list")
def list_runs(out: OutOption = RESULTS) -> None:
    """The runs under a results folder, oldest first."""
    from gate.listing import runs_text
    from gate.runs import entries

    typer.echo(runs_text(entries(out), out))


@app.command()
def doctor() -> None:
    """What this machine can and cannot do.

    And what to do about it; exit code 69 where something that every run needs is missing.
    """
    from gate.doctor import examine

    raise typer.Exit(examine())


@app.command("calibrate-client")
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


@app.command()
def version() -> None:
    """The gate's version."""
    _print_version(True)


@recipes_app.command("list")
def recipe_list() -> None:
    """Every recipe of the project."""
    from gate.listing import recipes_text

    typer.echo(recipes_text())


@recipes_app.command("show")
def recipe_show(name: Annotated[str, typer.Argument(help="Name or TOML file.")]) -> None:
    """A recipe with every default, as TOML.

    Saved to a file it can be changed and run: gate run --recipe FILE.toml
    """
    from gate.listing import recipe_toml
    from gate.recipe import load

    typer.echo(recipe_toml(load(name)), nl=False)


@recipes_app.command("check")
def recipe_check(names: Annotated[list[str], typer.Argument(help="Names or TOML files.")]) -> None:
    """Read recipes strictly.

    The first mistake is one line and exit code 64.
    """
    from gate.recipe import load

    for name in names:
        typer.echo(f"{name}: {load(name).name} is well-formed")


def main() -> None:
    interrupt.install()
    sys.exit(shell.run(app, "gate"))
