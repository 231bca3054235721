"""The oracle ran slower than it can: eager, traced or in a debug mode.

What it does
    Voids the run when the oracle on a GPU reports eager execution, no CUDA graphs or no compilation, and on any machine
    when it has a profiler armed or a variable in its environment that slows it down.
Why
    vLLM without graphs decodes a fifth slower (634 against 759 tok/s): every ratio against it flatters. The same goes
    for a profiler that was left on and for launches made synchronous to find a bug.
Deciding numbers
    enforce_eager, cudagraph_mode and compilation_mode of the oracle's own configuration line, and --enforce-eager on
    its command line, where recipe.gpu is true (the CPU pin is eager by design); its profiler; SLOWING variables that
    are set and not 0.
What to do
    Take the flag or variable out of the recipe's oracle table; oracle/pin.toml has the flags that bind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gate.checks.evidence import Evidence
from gate.observe.rows import Finding

CODE = "oracle-handicapped"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = "take it out of the recipe's oracle table; oracle/pin.toml has the flags that bind"

EAGER = {"log.enforce_eager": "True", "log.cudagraph_mode": "NONE", "log.compilation_mode": "NONE"}
SLOWING = (
    "CUDA_LAUNCH_BLOCKING",
    "PYTHONASYNCIODEBUG",
    "PYTHONDEVMODE",
    "TORCHDYNAMO_DISABLE",
    "TORCH_COMPILE_DISABLE",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_LOGS",
    "VLLM_COMPUTE_NANS_IN_LOGITS",
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE",
    "VLLM_TORCH_PROFILER_DIR",
    "VLLM_TRACE_FUNCTION",
)
OFF = frozenset({"", "0", "OFF", "false", "False"})


def eager(said: Mapping[str, str], argv: Sequence[str]) -> list[str]:
    found = [f"{key.removeprefix('log.')} is {value}" for key, value in EAGER.items() if said.get(key) == value]
    return found + [word for word in argv if word == "--enforce-eager"]


def debugging(said: Mapping[str, str], env: Mapping[str, str]) -> list[str]:
    found = [f"{name} is {env[name]}" for name in SLOWING if env.get(name, "") not in OFF]
    if env.get("VLLM_LOGGING_LEVEL") == "DEBUG":
        found.append("VLLM_LOGGING_LEVEL is DEBUG")
    if said.get("log.profiler", "none") != "none":
        found.append(f"a {said['log.profiler']} profiler is armed")
    return found


def check(evidence: Evidence) -> Iterator[Finding]:
    identity, plan = evidence.identity("oracle"), evidence.plan.oracle
    said = identity.extra if identity is not None else {}
    found = debugging(said, plan.env)
    if evidence.plan.recipe.gpu:
        found = eager(said, plan.argv or ()) + found
    if found:
        message = f"the oracle is held back: {'; '.join(found)}; expected its production settings"
        yield Finding(code=CODE, message=message, hint=HINT, arm="oracle")
