"""0 Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
SeedOption = Annotated[int | None, typer.Option("--seed", help="Random seed that the prompts are drawn from.")]
CoinOption = Annotated[str | None, typer.Option("--coin", help="candidate or oracle opens; tossed if not given.")]
PortOption = Annotated[int, typer.Option("--port", help="The candidate's port; the oracle gets the next one.")]
OutOption = Annotated[Path, typer.Option("--out", help="Folder of all results.", show_default="the project's results")]
RunArgument = Annotated[
    str | None, typer.Argument(help="Run id, its beginning, the plan's id, or a folder; the newest if left out.")
]
RESULTS = Path(__file__).resolve().parents[1] / "results"
PORT = 18101
