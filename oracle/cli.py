"""`python -m oracle install|verify|serve`, also mounted as `gate oracle`: arguments, help and exit codes; no logic.

Commands import what they need: `gate` mounts this module, and its --help must be quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gate import shell

app = typer.Typer(
    name="oracle",
    help="The pinned opponent: install it, verify it, serve it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

PlatformArgument = Annotated[str, typer.Argument(help="cpu or cuda: which of the two pins.", show_default=True)]


@app.command()
def install(
    platform: PlatformArgument = "cpu",
    source: Annotated[
        Path | None, typer.Option("--from", help="Offline: a folder of wheels, or of oracle.part.* archive parts.")
    ] = None,
    python: Annotated[Path | None, typer.Option(help="Interpreter to build on.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Install again even if it is there.")] = False,
) -> None:
    """Install the pinned vLLM.

    Into .oracle/PLATFORM; does nothing when it is there.
    """
    from oracle.install import install as install_oracle

    install_oracle(platform, source=source, python=python, force=force, say=_say)


@app.command()
def pack(
    folder: Annotated[Path, typer.Argument(help="Where to put the wheels.")],
    platform: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    python: Annotated[str | None, typer.Option(help="Python of the other machine, such as 3.12.")] = None,
) -> None:
    """Download every pinned wheel.

    To carry to a machine without a network: install PLATFORM --from FOLDER.
    """
    from oracle.pack import pack as pack_wheels

    pack_wheels(platform, folder, python=python, say=_say)


@app.command()
def verify(
    platform: PlatformArgument = "cpu",
    url: Annotated[str | None, typer.Option(help="Verify a running server too, by what it reports.")] = None,
) -> None:
    """Compare the installation with the pin.

    And a running server too, with --url; exit code 69 and a table when they differ.
    """
    from oracle.verify import verify_installed, verify_running

    verified = verify_installed(platform)
    _say(f"{platform}: {len(verified.pin.lock)} packages as pinned, Python {verified.python}")
    for note in verified.notes:
        _say(f"  note: {note.what} {note.found}, lock {note.pinned}")
    if url is not None:
        running = verify_running(url, platform)
        _say(f"{platform}: {url} serves {running.pin.distribution} {running.versions['vllm']}, read back as pinned")


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="Checkpoint folder.")],
    platform: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 8001,
    max_model_len: Annotated[int, typer.Option(help="Prompt plus output tokens of one request.")] = 4096,
    max_num_seqs: Annotated[int, typer.Option(help="Requests running at once.")] = 32,
    kv_cache_dtype: Annotated[str, typer.Option(help="auto, bfloat16 or fp8.")] = "auto",
    verified: Annotated[bool, typer.Option("--verify/--no-verify", help="Verify the installation first.")] = True,
) -> None:
    """Serve a checkpoint as a gate run would.

    In the foreground; Ctrl-C stops the whole process group.
    """
    from gate.preflight.checkpoint import verify as verify_checkpoint
    from oracle import serve as serving
    from oracle.verify import verify_installed

    verify_checkpoint(Path(model))
    if verified:
        verify_installed(platform)
    argv, env = serving.argv(platform, model, port, max_model_len, max_num_seqs, kv_cache_dtype)
    _say(" ".join(argv))
    sys.exit(serving.run_foreground(argv, env))


def _say(text: str) -> None:
    typer.echo(text)
    sys.stdout.flush()


def main() -> None:
    sys.exit(shell.run(app, "oracle"))
