"""KV capacity by a server's own word: vLLM's tokens before its blocks, our blocks as they are, nothing made up."""

from __future__ import annotations

import pytest

from gate.observe.capacity import Capacity, capacity, equal, text
from gate.observe.rows import Identity


def identity(**extra: str) -> Identity:
    return Identity(
        arm="oracle",
        version="1",
        model="m",
        max_model_len=512,
        prefix_caching=False,
        kv_cache_dtype="bfloat16",
        extra={key.replace("config_", "config.").replace("log_", "log."): value for key, value in extra.items()},
        digest="d",
    )


def test_tokens_that_a_server_names_count_before_its_blocks() -> None:
    """As vLLM 0.32.0 answered for a hybrid model: 4,096 blocks of 256, of which states take three in five."""
    found = capacity(
        identity(
            config_kv_cache_size_tokens="419430",
            config_num_gpu_blocks="4096",
            config_block_size="256",
            config_kv_cache_memory_bytes="1073741824",
        )
    )
    assert found == Capacity(419430, False, 2**30)


def test_blocks_alone_are_a_bound_but_for_our_engine_whose_blocks_hold_no_states() -> None:
    blocks = {"config_num_gpu_blocks": "256", "config_block_size": "16"}
    assert capacity(identity(**blocks)) == Capacity(4096, True, None)
    assert capacity(identity(**blocks, engine="gate-and-engine")) == Capacity(4096, False, None)


def test_the_size_that_a_server_logged_counts_where_it_names_none() -> None:
    logged = identity(config_num_gpu_blocks="202", config_block_size="1568", log_kv_cache_size_tokens="137912")
    assert capacity(logged) == Capacity(137912, False, None)
    assert capacity(identity(config_kv_cache_size_tokens="7", log_kv_cache_size_tokens="8")).tokens == 7


@pytest.mark.parametrize("value", ["None", "0", "-1", "", "1e3"])
def test_what_is_no_number_of_blocks_is_unknown(value: str) -> None:
    assert capacity(identity(config_num_gpu_blocks=value, config_block_size="16")) == Capacity()
    assert capacity(None) == Capacity()


@pytest.mark.parametrize(
    ("ours", "theirs", "same"), [(900, 1000, True), (1000, 900, True), (899, 1000, False), (None, 1000, None)]
)
def test_within_a_tenth_of_the_larger_is_equal(ours: int | None, theirs: int, same: bool | None) -> None:
    assert equal(Capacity(ours), Capacity(theirs)) is same


def test_a_bound_is_called_one() -> None:
    assert text(Capacity(4096), "fp8") == "4096 tokens of fp8"
    assert text(Capacity(4096, upper_bound=True), None) == "at most 4096 tokens"
    assert text(Capacity(), "fp8") == "unknown"
