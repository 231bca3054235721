"""4 What a pinned vLLM wrote about itself while it started: the settings that no route of it reports.

Eager or graphs, dtype, quantisation and parallelism stand only in the line that it logs before loading weights. Asking
for them over HTTP would take its development mode, which is not the server that users run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

CONFIG = re.compile(r"Initializing a V1 LLM engine \(v[^)]*\) with config: (.*)")
ARGUMENTS = re.compile(r"non-default args: \{(.*)\}")
ENUM = re.compile(r"<\w+\.(\w+): [^>]*>")
BUDGET = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")
CAPACITY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
"""Tokens that the KV cache holds, whatever kinds of layers share its blocks: the product."""
SAMPLING = re.compile(r"Default vLLM sampling parameters have been overridden by .*?: `(.*?)`")
KERNELS = (
    re.compile(r"Selected (\w+) for (\w+)"),
    re.compile(r"Using (\w+) (attention backend)"),
    re.compile(r"Using '?(\w+)'? (\w+ MoE backend)"),
    re.compile(r"Using ([\w/]+ GDN \w+ kernel)()"),
)
"""Which kernel families it chose, and for what."""
WEIGHTS = re.compile(r"Model loading took ([\d.]+) GiB")
PROFILER = re.compile(r"Profiler with mode '(\w+)' is enabled")

KEPT = (
    "dtype",
    "max_seq_len",
    "quantization",
    "enforce_eager",
    "kv_cache_dtype",
    "speculative_config",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "load_format",
)
"""Of the configuration line; the rest of it is paths, and knobs whose names change with every release."""
ARGUED = ("max_num_seqs", "max_num_batched_tokens", "scheduling_policy", "async_scheduling", "performance_mode")
"""Of the arguments that were given; one that was not is vLLM's default, which the log does not print."""
DEFAULTS = {"scheduling_policy": "fcfs"}
"""vLLM's own, documented, for those that decide something."""


def settings(text: str) -> dict[str, str]:
    """Name -> value as text; empty for a log that is not vLLM's, or that ends before it says."""
    found: dict[str, str] = {}
    arguments = _last(ARGUMENTS, text)
    if arguments is not None:
        given = dict(_pairs(arguments, ":"))
        found |= {name: given.get(name, DEFAULTS.get(name, "")) for name in ARGUED}
        found = {name: value for name, value in found.items() if value}
        found |= {"sampling_defaults": _last(SAMPLING, text) or "{}", "profiler": _last(PROFILER, text) or "none"}
    if (budget := _last(BUDGET, text)) is not None:
        found["max_num_batched_tokens"] = budget
    chosen = [" for ".join(filter(None, names)) for pattern in KERNELS for names in pattern.findall(text)]
    if chosen:
        found["kernels"] = "; ".join(sorted(set(chosen)))
    if (weights := _last(WEIGHTS, text)) is not None:
        found["weights_gib"] = weights
    if (held := CAPACITY.findall(text)) and (tokens := held[-1][0].replace(",", "")).isdecimal():
        found["kv_cache_size_tokens"] = str(int(int(tokens) * float(held[-1][1])))
    if (config := _last(CONFIG, text)) is not None:
        whole = dict(_pairs(config, "="))
        found |= {name: whole[name] for name in KEPT if name in whole}
        compilation = dict(_pairs(whole.get("compilation_config", "").strip("{}"), ":"))
        for name, kept_as in (("mode", "compilation_mode"), ("cudagraph_mode", "cudagraph_mode")):
            if name in compilation:
                found[kept_as] = ENUM.sub(r"\1", compilation[name])
    return found


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    matches = pattern.findall(text)
    return str(matches[-1]) if matches else None


def _pairs(text: str, mark: str) -> Iterator[tuple[str, str]]:
    """(name, value) of `a=1, b={'c': [2, 3]}` or `'a': 1, 'b': ...`: split only outside brackets and quotes."""
    for part in _parts(text):
        name, found, value = part.partition(mark)
        if found:
            yield name.strip().strip("'\""), value.strip().strip("'\"")


def _parts(text: str) -> Iterator[str]:
    depth, quote, start = 0, "", 0
    for position, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]
