"""What a vLLM's log says of its settings; the lines are those of 0.32.0 and 0.25.0, shortened."""

from __future__ import annotations

import pytest

from gate.observe.serverlog import settings

ARGUMENTS = (
    "(APIServer pid=1) INFO 11-29 22:04:56 [api_utils.py:286] non-default args: {'model': 'm', 'dtype': 'bfloat16', "
    "'served_model_name': ['tiny', 'x'], 'max_num_seqs': 8}\n"
)
CONFIG = (
    "(EngineCore pid=2) INFO 11-29 22:05:02 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
    "model='checkpoints/a, b', speculative_config=None, dtype=torch.bfloat16, max_seq_len=512, "
    "tensor_parallel_size=1, quantization=modelopt_mixed, enforce_eager=False, kv_cache_dtype=fp8, "
    "observability_config=ObservabilityConfig(x=None, enforce_eager=True), enable_chunked_prefill=True, "
    "compilation_config={'mode': <CompilationMode.VLLM_COMPILE: 3>, 'sizes': [1, 2], "
    "'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, 'pass': {'mode': 7}}, kernel_config=K(a='b')\n"
)


def test_the_configuration_line_is_split_outside_brackets_and_quotes() -> None:
    found = settings(ARGUMENTS + CONFIG)
    assert found == {
        "max_num_seqs": "8",
        "scheduling_policy": "fcfs",
        "sampling_defaults": "{}",
        "profiler": "none",
        "dtype": "torch.bfloat16",
        "max_seq_len": "512",
        "quantization": "modelopt_mixed",
        "enforce_eager": "False",
        "kv_cache_dtype": "fp8",
        "speculative_config": "None",
        "tensor_parallel_size": "1",
        "enable_chunked_prefill": "True",
        "compilation_mode": "VLLM_COMPILE",
        "cudagraph_mode": "FULL_AND_PIECEWISE",
    }


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("Chunked prefill is enabled with max_num_batched_tokens=8192.", "max_num_batched_tokens", "8192"),
        (
            "Default vLLM sampling parameters have been overridden by the model's `generation_config.json`: "
            "`{'top_k': 20, 'repetition_penalty': 1.05}`. If this is not intended",
            "sampling_defaults",
            "{'top_k': 20, 'repetition_penalty': 1.05}",
        ),
        ("Profiler with mode 'torch' is enabled in the API server.", "profiler", "torch"),
    ],
)
def test_lines_of_their_own(line: str, key: str, value: str) -> None:
    assert settings(ARGUMENTS + line + "\n")[key] == value


def test_arguments_that_were_given_win_over_defaults() -> None:
    assert settings("non-default args: {'scheduling_policy': 'priority'}")["scheduling_policy"] == "priority"


def test_the_last_start_in_a_log_counts() -> None:
    assert settings(CONFIG + CONFIG.replace("enforce_eager=False", "enforce_eager=True"))["enforce_eager"] == "True"


@pytest.mark.parametrize("text", ["", "engine: ready in 1.2 s", "with config: dtype=float16", "non-default args:"])
def test_another_log_says_nothing(text: str) -> None:
    assert settings(text) == {}


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("CPU KV cache size: 419,430 tokens, Maximum concurrency for 512 tokens per request: 819.20x\n", "419430"),
        ("Maximum concurrency for 4,096 tokens per request: 33.67x\n", "137912"),
    ],
)
def test_the_capacity_of_the_kv_cache_is_that_of_whole_requests(line: str, tokens: str) -> None:
    assert settings(line)["kv_cache_size_tokens"] == tokens
    assert "kv_cache_size_tokens" not in settings(ARGUMENTS)
