"""0 Arguments, help, exit codes; no logic. Commands import what they need, so that --help is quick."""

from __future__ import annotations

from typing import Annotated

import typer

from gate import shell
from gate.client.command import calibrate_client
from gate.fit.command import fit
from gate.modeldiff.command import app as model_app
from gate.options import (
    PORT,
    RESULTS,
    CandidateOption,
    CoinOption,
    ConcOption,
    ModelOption,
    OracleOption,
    OutOption,
    PortOption,
    RecipeOption,
    RepsOption,
    ResidencyOption,
    RunArgument,
    SeedOption,
)
from gate.recipecli import app as recipes_app
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
app.add_typer(recipes_app)
app.add_typer(model_app)
app.add_typer(oracle_app, name="oracle")


def _print_version(wanted: bool) -> None:
    if wanted:
        from gate.observe import installed

        typer.echo(installed.version("gate-and-engine"))
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

    Legs in order, both command lines, the plan's id and the command that repeats it; what is not here yet is named.
    """
    from gate.binding import shortened
    from gate.errors import PreconditionError
    from gate.inputs import Asked, again, plan_to_show
    from gate.listing import plan_text

    asked = Asked(recipe, model, conc, reps, candidate, oracle, residency, seed, coin, port)
    made, lacks = plan_to_show(asked)
    if as_json and lacks:
        raise PreconditionError("; ".join(lacks), hint="without --json it is printed as far as it is known")
    notes = (*lacks, *(f"a run of it will be indicative: {why}" for why in shortened(made)))
    typer.echo(made.model_dump_json(indent=2) if as_json else plan_text(made, again(asked, made), notes))


@app.command()
def resume(name: RunArgument = None, out: OutOption = RESULTS) -> None:
    """Go on with an interrupted run.

    At its next leg, under the same plan; a run that failed to start begins at leg 1.
    """
    from gate.progress import Ui
    from gate.run import resume as resume_gate
    from gate.runs import find
    from gate.tokenrun import flow, folder

    found = find(name, out)
    raise typer.Exit((flow.resume if folder.is_token_run(found) else resume_gate)(found, Ui()))


@app.command()
def report(name: RunArgument = None, out: OutOption = RESULTS) -> None:
    """Derive a run's report again, or a profile's.

    From its raw records, of a sweep and of start-ups too; the exit code is that of the command that measured.
    """
    from gate import shown

    raise typer.Exit(shown.report(name, out))


@app.command()
def tokens(
    recipe: RecipeOption = None,
    model: ModelOption = None,
    conc: ConcOption = None,
    repeats: Annotated[int, typer.Option("--repeats", help="Runs of each load by the oracle, 1 to 20.")] = 3,
    seeds: Annotated[
        int, typer.Option("--seeds", help="How many sets of prompts each level has, 1 to 20; --seed says which.")
    ] = 2,
    candidate: CandidateOption = None,
    oracle: OracleOption = None,
    residency: ResidencyOption = None,
    seed: SeedOption = None,
    port: PortOption = PORT,
    out: OutOption = RESULTS,
) -> None:
    """Judge greedy tokens alone, without timing.

    At every level, with long answers and with requests that come, go and are cancelled. The oracle answers several
    times and judges every position that differs; the exit code is the verdict.
    """
    from gate.inputs import Asked
    from gate.progress import Ui
    from gate.tokenrun.flow import run as run_tokens

    asked = Asked(recipe, model, conc, None, candidate, oracle, residency, seed, "candidate", port)
    raise typer.Exit(run_tokens(asked, repeats, seeds, out, Ui()))


@app.command()
def profile(
    name: Annotated[str | None, typer.Argument(help="A recorded profile: shown anew from its records.")] = None,
    recipe: RecipeOption = None,
    model: ModelOption = None,
    conc: Annotated[str | None, typer.Option("--conc", help="The one batch size of every step; 1 if left out.")] = None,
    candidate: CandidateOption = None,
    oracle: OracleOption = None,
    backend: Annotated[
        str | None, typer.Option("--backend", help="nsys or cupti; left out, nsys where it is installed.")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option("--prompt-tokens", min=1, help="Of each prompt; left out, the recipe's.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=100, help="Batches of requests in a window.")] = 1,
    roof: Annotated[
        float | None, typer.Option("--roof", min=1.0, help="Memory roof in GB/s; left out, known devices'.")
    ] = None,
    control: Annotated[
        bool, typer.Option("--control/--no-control", help="Profile the first arm again at the end: the drift.")
    ] = True,
    keep_traces: Annotated[
        bool, typer.Option("--keep-traces", help="Leave the profiler's own files in the profile's folder.")
    ] = False,
    diff: Annotated[
        str | None, typer.Option("--diff", help="Another profile to compare NAME's candidate with.")
    ] = None,
    seed: SeedOption = None,
    coin: CoinOption = None,
    port: PortOption = PORT,
    out: OutOption = RESULTS,
) -> None:
    """Where the milliseconds of a decode step go.

    Traces 8 and 136 output tokens and divides the difference by 128 steps; splits the arms' delta into levers. Exit
    code 0: every lever is proven or below the drift; 2: something is unproven or was not traced; 3: refused.
    """
    from gate.inputs import Asked
    from gate.profile.flow import ProfileAsked, command
    from gate.progress import Ui

    asked = Asked(recipe, model, conc, None, candidate, oracle, None, seed, coin, port)
    more = ProfileAsked(backend, prompt_tokens, rounds, roof, control, keep_traces)
    raise typer.Exit(command(name, diff, asked, more, out, Ui()))


@app.command()
def show(
    name: RunArgument = None,
    out: OutOption = RESULTS,
    every: Annotated[bool, typer.Option("--all", help="Every cell, not only the primary ones.")] = False,
) -> None:
    """Print a run's table as it was reported.

    A sweep's, a profile's and that of start-ups too; gate list shows what there is.
    """
    from gate import shown

    shown.show(name, out, every)


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
    """Start both servers in turns; judge how long they take.

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


@app.command()
def compare(
    first: Annotated[str, typer.Argument(help="Run id, its beginning, or a folder: what was.")],
    second: Annotated[str, typer.Argument(help="The same: what is.")],
    out: OutOption = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Set two runs side by side, absolute figures included.

    The exit code: 0 no loss, 1 a primary axis lost beyond the band, 2 not decidable, 3 nothing to compare.
    """
    from gate.compare.comparison import compare as compare_runs
    from gate.compare.show import render
    from gate.runs import find

    found = compare_runs(find(first, out), find(second, out))
    shell.table(f"{found.model_dump_json(indent=1)}\n" if as_json else render(found))
    raise typer.Exit(found.exit_code)


@app.command()
def sweep(
    recipe: RecipeOption = None,
    model: ModelOption = None,
    pp: Annotated[str, typer.Option("--pp", help="Prompt lengths, such as 128,512,2048; empty: none.")] = "512",
    tg: Annotated[str, typer.Option("--tg", help="Numbers of generated tokens; empty: none.")] = "128",
    depth: Annotated[str, typer.Option("--depth", help="Tokens in the context before tg, such as 0,4096.")] = "0",
    reps: Annotated[int, typer.Option("--reps", help="Timed requests per point and arm.", min=1, max=100)] = 5,
    candidate: CandidateOption = None,
    oracle: Annotated[
        str | None, typer.Option("--oracle", help='As in gate run; "none" sweeps the candidate alone.')
    ] = None,
    residency: ResidencyOption = None,
    seed: SeedOption = None,
    coin: CoinOption = None,
    port: PortOption = PORT,
    out: OutOption = RESULTS,
) -> None:
    """Prefill and decode rates over length and depth.

    Named as llama-bench names them. One stream, both arms in turns; a table, plots and raw records, no verdict.
    """
    from gate.inputs import Asked
    from gate.progress import Ui
    from gate.sweep.flow import run as run_sweep
    from gate.sweep.points import points

    asked = Asked(recipe, model, None, None, candidate, oracle, residency, seed, coin, port)
    raise typer.Exit(run_sweep(asked, points(pp, tg, depth), reps, out, Ui()))


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


@app.command()
def calibrate(
    recipe: RecipeOption = None,
    model: ModelOption = None,
    conc: ConcOption = None,
    reps: RepsOption = None,
    gates: Annotated[int, typer.Option(help="Complete A/A gates to have; those that are there count.")] = 8,
    arm: Annotated[str, typer.Option(help="Which arm runs against itself: oracle or candidate.")] = "oracle",
    candidate: CandidateOption = None,
    oracle: OracleOption = None,
    residency: ResidencyOption = None,
    port: PortOption = PORT,
    out: OutOption = RESULTS,
) -> None:
    """Measure the noise of this host: A/A gates.

    Runs an arm against itself until there are enough gates, then writes the host's band: later runs are judged by it.
    """
    from gate.calibration.calibrate import calibrate as calibrate_host
    from gate.inputs import Asked, arm_for
    from gate.progress import Ui

    asked = Asked(recipe, model, conc, reps, candidate, oracle, residency, port=port)
    raise typer.Exit(calibrate_host(asked, arm_for("--arm", arm), gates, out, Ui()))


@app.command()
def selftest(
    only: Annotated[list[str] | None, typer.Option("--only", help="A case, or a class of cases; repeatable.")] = None,
    names: Annotated[bool, typer.Option("--list", help="Names and titles; starts nothing.")] = False,
) -> None:
    """Show that the gate judges right on this machine.

    Faults that once made wrong numbers, a scripted server with faults, a slow one, and equal ones; needs no GPU.
    """
    from gate.selftest import examine

    if names:
        typer.echo(examine.listing())
    else:
        raise typer.Exit(examine.examine(only or ()))


app.command("calibrate-client")(calibrate_client)
app.command()(fit)


@app.command()
def version() -> None:
    """The gate's version."""
    _print_version(True)


def main() -> None:
    shell.main(app, "gate")
