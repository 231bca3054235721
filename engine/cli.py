"""The command line: arguments, help and exit codes. Every default is read from config.py."""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from engine import allocator
from engine.config import (
    MOST_BATCHED_TOKENS,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
)
from engine.errors import INTERRUPTED, USAGE, EngineError, PreconditionError, UsageError

if TYPE_CHECKING:
    from engine.bench_step import StepBench

app = typer.Typer(
    name="engine",
    help="Serve Qwen3.5/3.6 models (dense and MoE, NVFP4 and FP8) over OpenAI's API.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_MODEL, _CACHE, _SCHEDULER, _SERVER = ModelConfig(Path()), CacheConfig(), SchedulerConfig(), ServerConfig()

Model = Annotated[Path, typer.Argument(help="Checkpoint folder: config.json and safetensors.", metavar="MODEL")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to run; auto takes CUDA where it is.")]
Dtype = Annotated[Literal["bfloat16", "float32"], typer.Option(help="Activations; float32 is for agreement tests.")]
MaxModelLen = Annotated[int, typer.Option(help="Prompt plus output tokens of one request.", min=1)]
MaxNumSeqs = Annotated[int, typer.Option(help="Requests that run at once; also the number of state slots.", min=1)]
MaxNumBatchedTokens = Annotated[
    int, typer.Option(help="Tokens per step: decode first, prefill chunks after.", min=1, max=MOST_BATCHED_TOKENS)
]
BlockTokens = Annotated[int, typer.Option(help="Tokens per KV block.", min=1)]
NumBlocks = Annotated[int | None, typer.Option(help="KV blocks; left out, what the limits or memory allow.", min=1)]
KvCacheDtype = Annotated[
    Literal["auto", "bfloat16", "fp8"], typer.Option(help="KV cache; auto is what the checkpoint asks for.")
]
AllowReference = Annotated[
    bool, typer.Option("--allow-reference", help="On CUDA, run slow references where a kernel is missing.")
]
DequantCacheBytes = Annotated[
    int, typer.Option(help="On a CPU, keep dequantised weights up to this many bytes.", min=0)
]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        _print_version()
        raise typer.Exit


@app.command("version")
def _version() -> None:
    """The engine's version."""
    _print_version()


def _print_version() -> None:
    from engine import manifest

    typer.echo(f"engine {manifest.version()} (sources {manifest.source_sha256()[:12]})")


@app.command()
def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = _SERVER.host,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = _SERVER.port,
    served_model_name: Annotated[
        str | None, typer.Option(help="The model's name in the API; left out, MODEL as given.")
    ] = _MODEL.served_name,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the key clients must send.", metavar="NAME")
    ] = _SERVER.api_key_env,
    device: Device = _MODEL.device,  # type: ignore[assignment]
    dtype: Dtype = _MODEL.dtype,  # type: ignore[assignment]
    max_model_len: MaxModelLen = _SCHEDULER.max_model_len,
    max_num_seqs: MaxNumSeqs = _SCHEDULER.max_num_seqs,
    max_num_batched_tokens: MaxNumBatchedTokens = _SCHEDULER.max_num_batched_tokens,
    max_waiting: Annotated[
        int, typer.Option(help="Queued requests; one more is a 503.", min=1)
    ] = _SCHEDULER.max_waiting,
    block_tokens: BlockTokens = _CACHE.block_tokens,
    num_blocks: NumBlocks = _CACHE.num_blocks,
    kv_cache_dtype: KvCacheDtype = _CACHE.kv_cache_dtype,  # type: ignore[assignment]
    max_logprobs: Annotated[
        int, typer.Option(help="Largest `logprobs` a request may ask for; -1 allows the vocabulary.", min=-1)
    ] = _SERVER.max_logprobs,
    max_n: Annotated[int, typer.Option(help="Largest `n` of a request.", min=1)] = _SERVER.max_n,
    max_prompts: Annotated[int, typer.Option(help="Prompts in one completions body.", min=1)] = _SERVER.max_prompts,
    max_body_bytes: Annotated[int, typer.Option(help="Largest request body.", min=1)] = _SERVER.max_body_bytes,
    allow_reference: AllowReference = _MODEL.allow_reference,
    dequant_cache_bytes: DequantCacheBytes = _MODEL.dequant_cache_bytes,
) -> None:
    """Serve MODEL until SIGINT or SIGTERM."""
    from engine.server.serve import serve as run_server

    config = EngineConfig(
        ModelConfig(model, served_model_name, device, dtype, allow_reference, dequant_cache_bytes),
        CacheConfig(block_tokens, num_blocks, kv_cache_dtype),
        SchedulerConfig(max_num_seqs, max_num_batched_tokens, max_model_len, max_waiting),
        ServerConfig(host, port, max_body_bytes, max_n, max_prompts, max_logprobs, api_key_env),
    )
    run_server(config)


@app.command()
def generate(
    model: Model,
    prompt: Annotated[str | None, typer.Option(help="The prompt as text.")] = None,
    prompt_ids: Annotated[str | None, typer.Option(help="The prompt as token ids, separated by commas.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate.", min=1)] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0)] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus.", min=0, max=1)] = 1.0,
    top_k: Annotated[int, typer.Option(help="0 keeps the whole vocabulary.", min=0)] = 0,
    seed: Annotated[int | None, typer.Option(help="Makes a draw repeatable.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end of the sequence.")] = False,
    show_ids: Annotated[bool, typer.Option("--show-ids", help="Print token ids instead of text.")] = False,
    device: Device = _MODEL.device,  # type: ignore[assignment]
    dtype: Dtype = _MODEL.dtype,  # type: ignore[assignment]
    max_model_len: MaxModelLen = _SCHEDULER.max_model_len,
    max_num_batched_tokens: MaxNumBatchedTokens = _SCHEDULER.max_num_batched_tokens,
    block_tokens: BlockTokens = _CACHE.block_tokens,
    kv_cache_dtype: KvCacheDtype = _CACHE.kv_cache_dtype,  # type: ignore[assignment]
    allow_reference: AllowReference = _MODEL.allow_reference,
    dequant_cache_bytes: DequantCacheBytes = _MODEL.dequant_cache_bytes,
) -> None:
    """Generate once, without a server: print each token as it comes."""
    from engine.generate import generate as run
    from engine.request import SamplingParams

    config = EngineConfig(
        ModelConfig(model, None, device, dtype, allow_reference, dequant_cache_bytes),
        CacheConfig(block_tokens, None, kv_cache_dtype),
        SchedulerConfig(1, max_num_batched_tokens, max_model_len),
    )
    try:
        params = SamplingParams(
            max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, ignore_eos=ignore_eos
        )
    except ValueError as error:
        raise UsageError(f"--{str(error).replace('_', '-', 1)}") from error
    run(config, params, prompt=prompt, prompt_ids=_ids(prompt_ids), show_ids=show_ids, out=sys.stdout)


@app.command()
def census(
    model: Model,
    device: Device = _MODEL.device,  # type: ignore[assignment]
    dtype: Dtype = _MODEL.dtype,  # type: ignore[assignment]
    allow_reference: AllowReference = _MODEL.allow_reference,
) -> None:
    """Load MODEL; print its bytes by module, shipped and resident. Exit code 1 where one is wider than shipped."""
    from engine.census import WidenedError
    from engine.server.loading import check_folder, load_runner

    check_folder(model)
    # One short sequence: the census is about weights, and the caches should not need the memory of a server's.
    limits = SchedulerConfig(max_num_seqs=1, max_model_len=_CACHE.block_tokens)
    config = EngineConfig(ModelConfig(model, None, device, dtype, allow_reference, 0), scheduler=limits)
    try:
        found = load_runner(config).census()
    except WidenedError as error:
        found = error.census
    typer.echo("\n".join(found.lines()))
    raise typer.Exit(1 if found.widened or found.absent else 0)


@app.command()
def build(
    arch: Annotated[str, typer.Option(help="Architectures, separated by commas.", metavar="90a,121a")] = "90a,121a",
    force: Annotated[bool, typer.Option("--force", help="Compile even where the library is current.")] = False,
) -> None:
    """Compile the CUDA kernels with nvcc; needs no GPU."""
    from engine.kernels.build import TARGETS, BuildError
    from engine.kernels.build import build as build_library

    wanted = [name.strip() for name in arch.split(",")]
    for name in wanted:
        if name not in TARGETS:
            raise UsageError(f"--arch {name}: expected {' or '.join(TARGETS)}, separated by commas")
    for name in wanted:
        try:
            build_library(name, force=force, say=typer.echo)
        except BuildError as error:
            raise PreconditionError(str(error)) from error


bench = typer.Typer(
    help="Measure this device, kernel by kernel.\n\nLaunches, µs, GB/s and the share of its roof.", no_args_is_help=True
)
app.add_typer(bench, name="bench")

Steps = Annotated[
    int,
    typer.Option(help="Timed steps; printed are decode's mean, since its steps overlap, and prefill's median.", min=1),
]


@bench.command("op")
def bench_op(
    names: Annotated[
        list[str],
        typer.Argument(help="w4a16, w8a8, norm, gdn, attention, rope, sample, moe, wide, prefill.", metavar="OP..."),
    ],
    batch: Annotated[str, typer.Option(help="Sequences in a step, separated by commas.", metavar="1,8,32")] = "1,8,32",
) -> None:
    """The kernels of each OP at the 27B's shapes, moe at the 35B's.

    Checked first, then timed from cold memory.
    """
    from engine import bench as ops

    sizes = _sizes("--batch", batch)
    for name in names:
        typer.echo(ops.table(ops.bench(name, sizes)) + "\n")


@bench.command("step")
def bench_step(
    model: Model,
    batch: Annotated[str, typer.Option(help="Sequences in a step, separated by commas.", metavar="1,8,32")] = "1,8,32",
    context: Annotated[int, typer.Option(help="Tokens each sequence holds.", min=1)] = 1024,
    steps: Steps = 32,
    kv_cache_dtype: KvCacheDtype = _CACHE.kv_cache_dtype,  # type: ignore[assignment]
) -> None:
    """A decoding step of MODEL, kernel by kernel."""
    sizes = _sizes("--batch", batch)
    runner = _bench_runner(model, max(sizes), context + steps + 64, kv_cache_dtype)
    for size in sizes:
        typer.echo("\n".join(runner.decode(size, context, steps).lines()) + "\n")


@bench.command("prefill")
def bench_prefill(
    model: Model,
    tokens: Annotated[str, typer.Option(help="Prompt lengths, separated by commas.", metavar="N,N")] = "128,1024,4096",
    steps: Steps = 5,
    kv_cache_dtype: KvCacheDtype = _CACHE.kv_cache_dtype,  # type: ignore[assignment]
) -> None:
    """One prompt of MODEL in one step, kernel by kernel."""
    sizes = _sizes("--tokens", tokens)
    runner = _bench_runner(model, 1, max(sizes), kv_cache_dtype)
    for size in sizes:
        typer.echo("\n".join(runner.prefill(size, steps).lines()) + "\n")


def _bench_runner(model: Path, sequences: int, length: int, kv_cache_dtype: str) -> StepBench:
    from engine.bench_step import StepBench
    from engine.server.loading import check_folder, load_runner

    check_folder(model)
    cache = CacheConfig(kv_cache_dtype=kv_cache_dtype)
    limits = SchedulerConfig(max_num_seqs=sequences, max_model_len=length)
    began = time.monotonic()
    runner = load_runner(EngineConfig(ModelConfig(model, device="cuda"), cache, limits))
    peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    typer.echo(f"loaded in {time.monotonic() - began:.1f} s, peak host RSS {peak_rss_bytes / 2**30:.2f} GiB\n")
    return StepBench(runner)


AGAIN_S = 0.001


def main() -> None:
    """The console script."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    sys.unraisablehook = _again
    sys.exit(run(sys.argv[1:]))


def _again(dropped: sys.UnraisableHookArgs) -> None:
    """Python drops what the callback raises that each import ends with, and a server begins with seconds of imports: a
    Ctrl-C that came just then comes again a moment later."""
    if isinstance(dropped.exc_value, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    else:
        sys.__unraisablehook__(dropped)


def run(arguments: list[str]) -> int:
    """Exit code: 0, 64 for the command line, 69 for what is missing, 130 for Ctrl-C. One line for a user's mistake."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="engine: %(message)s")
    allocator.choose(os.environ)
    command = typer.main.get_command(app)
    try:
        code = command.main(args=arguments or ["--help"], prog_name="engine", standalone_mode=False)
    except typer.exceptions.TyperException as error:
        if error.format_message().startswith("Usage:"):  # the help itself, for a command that wants another word
            typer.echo(error.format_message(), err=True)
            return USAGE
        context = getattr(error, "ctx", None)
        command_path = context.command_path if context is not None else "engine"
        return _complain(f"{' '.join(error.format_message().split())} ({command_path} --help)", USAGE)
    except EngineError as error:
        return _complain(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int) -> int:
    typer.echo(f"engine: {message}", err=True)
    return code


def _sizes(option: str, text: str) -> list[int]:
    parts = text.replace(",", " ").split()
    if not parts or not all(part.isdecimal() and 0 < int(part) <= 2**20 for part in parts):
        raise UsageError(f"{option} is {text[:60]!r}; expected sizes separated by commas, such as 1,8,32")
    return [int(part) for part in parts]


def _ids(text: str | None) -> list[int] | None:
    """Raises UsageError for anything but non-negative integers of up to 10 digits, more than any vocabulary has."""
    if text is None:
        return None
    parts = text.replace(",", " ").split()
    if not parts or not all(part.isdecimal() and len(part) <= 10 for part in parts):
        raise UsageError(f"--prompt-ids is {text[:60]!r}; expected token ids separated by commas, such as 1,2,3")
    return [int(part) for part in parts]
