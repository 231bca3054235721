"""The arithmetic of memory: against the published sizes of the two models, and as laws that hold for any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gate.errors import CheckpointError
from gate.fit.largest import MOST_SEQUENCES, largest_context, largest_max_num_seqs
from gate.fit.need import SERVERS, Limits, Need, Server, Weights, caches, need, step, weights
from gate.fit.sizes import Sizes, asked_kv_dtype, sizes
from gate.headers.read import Headers, read
from gate.headers.schemes import modules
from tests.gate.headers.sparse import synthetic

MODELS = st.builds(
    Sizes,
    hidden=st.integers(1, 8192),
    vocabulary=st.integers(1, 300_000),
    max_context=st.integers(1, 300_000),
    attention_layers=st.integers(0, 64),
    kv_heads=st.integers(1, 16),
    head_dim=st.integers(1, 256),
    gdn_layers=st.integers(0, 64),
    conv_kept=st.integers(1, 40_000),
    state=st.integers(1, 1_000_000),
    widest=st.integers(1, 100_000),
)
LIMITS = st.builds(
    Limits,
    context=st.integers(1, 300_000),
    max_num_seqs=st.integers(1, 512),
    kv_bytes=st.sampled_from([1, 2]),
    batched_tokens=st.none() | st.integers(1, 16_384),
    memory_bytes=st.none() | st.integers(1, 2**38),
    overhead_bytes=st.integers(0, 2**31),
)
HELD = Weights(shipped=10**9, by_family={"BF16": 10**9}, row_scales=10**5, scratch=10**7, left_alone={})


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Headers:
    """The 27B, full size; headers only."""
    return read(synthetic(tmp_path_factory.mktemp("27b") / "c", "27b", vision=True, mtp=True))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Headers:
    """The 35B's shapes; four layers are written, config.json is that of all forty."""
    headers = read(synthetic(tmp_path_factory.mktemp("35b") / "c", "35b", layers=4))
    text = {**headers.text, "num_hidden_layers": 40, "layer_types": [*headers.text["layer_types"]] * 10}
    return Headers(headers.folder, {**headers.config, "text_config": text}, headers.tensors, headers.legacy)


def test_sizes_of_the_27b(dense: Headers) -> None:
    model = sizes(dense)
    assert (model.attention_layers, model.gdn_layers) == (16, 48)
    assert model.kv_token_bytes(2) == 65_536
    assert model.kv_token_bytes(1) == 32_768
    assert model.state_layer_bytes == 61_440 + 3_145_728
    assert model.state_bytes == 153_944_064
    assert asked_kv_dtype(dense) == ("fp8", "auto: config.json asks for fp8")


def test_sizes_of_the_35b(mixture: Headers) -> None:
    model = sizes(mixture)
    assert (model.attention_layers, model.gdn_layers) == (10, 30)
    assert model.kv_token_bytes(2) == 20_480
    assert model.state_layer_bytes == 49_152 + 2_097_152
    assert asked_kv_dtype(mixture) == (
        "bfloat16",
        "auto: config.json asks for no KV scheme; hf_quant_config.json says fp8, and config.json wins",
    )


def test_weights_of_the_27b(dense: Headers) -> None:
    """17.60 GB read in a step and 2.54 of embedding; nvidia's file holds 0.92 of vision and 0.85 of MTP beside them."""
    held = weights(modules(dense))
    assert held.shipped == pytest.approx(17.60e9 + 2.543e9, rel=1e-3)
    assert held.by_family["NVFP4"] == pytest.approx(9.626e9 + 0.715e9, rel=1e-3)
    assert held.by_family["FP8"] == pytest.approx(5.536e9 + 1.678e9, rel=1e-3)
    assert held.left_alone == {"vision": pytest.approx(0.92e9, rel=0.01), "mtp": pytest.approx(0.85e9, rel=0.01)}
    assert held.scratch == 2 * 17_408 * 5120 * 2
    assert held.shipped + sum(held.left_alone.values()) == sum(one.nbytes for one in dense.tensors.values())


@pytest.mark.parametrize(
    ("which", "block", "page", "blocks"), [("dense", 1568, 51_380_224, 193), ("mixture", 2096, 21_463_040, 161)]
)
def test_pages_of_vllm_are_those_of_the_shipped_recipes(
    which: str, block: int, page: int, blocks: int, request: pytest.FixtureRequest
) -> None:
    model = sizes(request.getfixturevalue(which))
    kv, state, tokens = caches("vllm", model, Limits(context=4096, max_num_seqs=32, kv_bytes=1))
    assert tokens == block
    assert divmod(kv + state, page) == (blocks, 0)


def test_the_27bs_block_with_bfloat16_keys_is_the_one_that_vllm_logs(dense: Headers) -> None:
    _, _, tokens = caches("vllm", sizes(dense), Limits(context=4096, max_num_seqs=1, kv_bytes=2))
    assert tokens == 784


def test_our_caches_are_blocks_of_16_and_a_slot_a_sequence(dense: Headers) -> None:
    model = sizes(dense)
    kv, state, tokens = caches("engine", model, Limits(context=4097, max_num_seqs=3, kv_bytes=1))
    assert (kv, state, tokens) == (3 * 4112 * 32_768, 3 * 153_944_064, 16)


@pytest.mark.parametrize("server", SERVERS)
@settings(max_examples=200, deadline=None)
@given(model=MODELS, limits=LIMITS)
def test_more_of_anything_never_takes_less(server: Server, model: Sizes, limits: Limits) -> None:
    base = need(server, model, HELD, limits)
    for name in ("context", "max_num_seqs", "batched_tokens", "overhead_bytes"):
        if (value := getattr(limits, name)) is not None:
            more = limits.model_copy(update={name: value + 1})
            assert need(server, model, HELD, more).total >= base.total
    assert base.total >= base.exact >= HELD.shipped


@pytest.mark.parametrize("server", SERVERS)
@settings(max_examples=200, deadline=None)
@given(model=MODELS, limits=LIMITS)
def test_caches_hold_every_token_and_every_state(server: Server, model: Sizes, limits: Limits) -> None:
    kv, state, block = caches(server, model, limits)
    assert kv >= limits.max_num_seqs * limits.context * model.kv_token_bytes(limits.kv_bytes)
    assert state >= limits.max_num_seqs * model.state_bytes
    assert block % 16 == 0


@pytest.mark.parametrize("server", SERVERS)
@settings(max_examples=150, deadline=None)
@given(model=MODELS, limits=LIMITS, memory=st.integers(0, 2**37))
def test_the_largest_fits_and_one_more_does_not(server: Server, model: Sizes, limits: Limits, memory: int) -> None:
    def needs(of: Limits) -> Need:
        return need(server, model, HELD, of)

    def total(**change: int) -> int:
        return needs(limits.model_copy(update=change)).total

    longest = largest_context(needs, limits, memory, model.max_context)
    assert (longest is None) == (total(context=1) > memory)
    if longest is not None:
        assert total(context=longest) <= memory
        assert longest == model.max_context or total(context=longest + 1) > memory
    most = largest_max_num_seqs(needs, limits, memory)
    assert (most is None) == (total(max_num_seqs=1) > memory)
    if most is not None:
        assert total(max_num_seqs=most) <= memory
        assert most == MOST_SEQUENCES or total(max_num_seqs=most + 1) > memory


def text(**change: Any) -> Headers:
    config = {
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 512,
    }
    return Headers(Path(), {**config, **change}, {})


def test_a_model_of_attention_alone_has_no_state_and_defaults_of_its_own() -> None:
    model = sizes(text())
    assert (model.attention_layers, model.gdn_layers, model.state_bytes) == (4, 0, 0)
    assert (model.kv_heads, model.head_dim) == (4, 16)
    for server in SERVERS:
        assert caches(server, model, Limits(context=17, max_num_seqs=1, kv_bytes=2)) == (4 * 32 * 256, 0, 16)


@pytest.mark.parametrize(
    ("change", "ours", "theirs"),
    [
        ({}, (16384, "its default"), (8192, "its default on an H200")),
        ({"memory_bytes": 70 * 2**30}, (16384, "its default"), (8192, "its default on an H200")),
        ({"memory_bytes": 70 * 2**30 - 1}, (16384, "its default"), (2048, "its default on a smaller card")),
        ({"context": 257}, (16384, "its default"), (8192, "its default on an H200")),
        ({"context": 256}, (16384, "its default"), (8192, "its default on an H200")),
        ({"context": 255}, (16384, "its default"), (8160, "its default, no more than all sequences hold")),
        ({"context": 255, "batched_tokens": 9000}, (9000, "as asked"), (9000, "as asked")),
    ],
)
def test_a_step_is_each_servers_own(
    dense: Headers, change: dict[str, int], ours: tuple[int, str], theirs: tuple[int, str]
) -> None:
    limits = Limits(**{"context": 4096, "max_num_seqs": 32, "kv_bytes": 1} | change)  # type: ignore[arg-type]
    assert (step("engine", limits), step("vllm", limits)) == (ours, theirs)
    model = sizes(dense)
    for server, (tokens, _) in zip(SERVERS, (ours, theirs), strict=True):
        outputs = need(server, model, HELD, limits).activations - limits.max_num_seqs * 248_320 * 6
        assert outputs == tokens * (2 * 5120 + 63_488) * 2


def test_the_estimate_is_the_widest_layers_outputs_and_logits(dense: Headers) -> None:
    """27B: a GDN layer's outputs (63,488) are more than its MLP's three of 17,408."""
    model = sizes(dense)
    assert model.widest == 2 * 10_240 + 4 * 6_144 + 48 * 128 + 48 * 128 * 128 // 64
    limits = Limits(context=1, max_num_seqs=7, kv_bytes=1, batched_tokens=100, overhead_bytes=5)
    for server, scratch in (("engine", HELD.scratch), ("vllm", 0)):
        made = need(server, model, HELD, limits)  # type: ignore[arg-type]
        assert made.activations == 100 * (2 * 5120 + 63_488) * 2 + 7 * 248_320 * 6
        assert (made.scratch, made.overhead) == (scratch, 5)
    extra = need("engine", model, HELD, limits).weights - need("vllm", model, HELD, limits).weights
    assert extra == HELD.row_scales + 1 * 64 * 2, "of 256 dimensions 64 rotate"


@pytest.mark.parametrize(
    ("change", "widest"),
    [
        ({}, 3 * 128),
        ({"intermediate_size": 8}, 64 + 2 * 64 + 64),
        ({"intermediate_size": 8, "attn_output_gate": True}, 2 * 64 + 2 * 64 + 64),
        ({"intermediate_size": 8, "num_key_value_heads": 1, "head_dim": 32}, 4 * 32 + 2 * 32 + 4 * 32),
        ({"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32}, 4 * (3 * 32 + 64) + 16),
        (
            {
                "num_experts": 16,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 32,
                "shared_expert_intermediate_size": 10,
            },
            4 * (3 * 32 + 64) + 16 + 30,
        ),
    ],
)
def test_the_widest_layer(change: dict[str, Any], widest: int) -> None:
    assert sizes(text(**change)).widest == widest


def test_weights_by_family_and_joined_scratch(mixture: Headers) -> None:
    """Experts are many and small: the scratch is the joined attention projection's, FP8 as it is."""
    held = weights(modules(mixture))
    assert held.scratch == max((8192 + 2 * 512) * 2048, (8192 + 4096) * 2048)
    rows = sum(one.shape[0] for one in modules(mixture).values() if one.family in ("NVFP4", "FP8"))
    assert held.row_scales == 4 * rows
    assert 0 < held.widened < 10**8
    assert held.left_alone == {}


def test_a_pattern_stands_for_a_list_of_layers() -> None:
    names = ("linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads", "linear_value_head_dim")
    model = sizes(text(full_attention_interval=4, linear_conv_kernel_dim=4, **dict.fromkeys(names, 2)))
    assert (model.attention_layers, model.gdn_layers) == (1, 3)
    assert (model.conv_kept, model.state) == (3 * 12, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "config.json has hidden_size = None; expected a number of 1 or more"),
        ({"vocab_size": 0}, "vocab_size = 0"),
        ({"vocab_size": "9"}, "vocab_size = '9'"),
        ({"layer_types": ["full_attention"]}, "layer_types; expected 4 kinds"),
        ({"layer_types": ["sliding_attention"] * 4}, "layers of sliding_attention; expected full_attention"),
        ({"layer_types": ["linear_attention"] * 4}, "linear_num_key_heads = None"),
    ],
)
def test_a_size_that_is_missing_is_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        sizes(text(**change))


def test_without_any_configuration_the_cache_is_bfloat16() -> None:
    assert asked_kv_dtype(text()) == ("bfloat16", "auto: no configuration asks for a KV scheme")
    legacy = Headers(Path(), {}, {}, {"kv_cache_quant_algo": "FP8"})
    assert asked_kv_dtype(legacy) == ("fp8", "auto: hf_quant_config.json asks for fp8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_lora_rank": 512}, "config.json has kv_lora_rank: keys and values are stored as a latent"),
        ({"is_encoder_decoder": True}, "a cache of the encoder too"),
        ({"hybrid_override_pattern": "M-M*"}, "states of another kind"),
        ({"sliding_window": 128}, "sliding_window = 128"),
        ({"full_attention_interval": "4"}, "full_attention_interval = '4'"),
        ({"full_attention_interval": [4]}, r"full_attention_interval = \[4\]"),
        ({"full_attention_interval": True}, "full_attention_interval = True"),
        ({"full_attention_interval": -4}, "full_attention_interval = -4"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000; expected at most 4096"),
        ({"hidden_size": 10**400}, "hidden_size = more digits than a size has; expected at most"),
        ({"hidden_size": -(10**400)}, "expected a number of 1 or more"),
        ({"vocab_size": 2**41}, "vocab_size = 2199023255552; expected at most"),
        ({"vocab_size": "9" * 400}, "vocab_size = '9{59}; expected"),
        ({"hidden_size": 64.0}, r"hidden_size = 64\.0"),
        ({"layer_types": {"a": 1}}, "layer_types; expected 4 kinds"),
        ({"layer_types": [[1], {}, None, 2]}, "config.json has layers of"),
        ({"num_experts": "4"}, "num_experts_per_tok = None"),
        (
            {"num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": "x"},
            "intermediate_size = 'x'",
        ),
        ({"num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": -5}, "intermediate_size = -5"),
    ],
)
def test_a_configuration_of_another_kind_or_of_nonsense_is_one_short_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as refused:
        sizes(text(**change))
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "change",
    [
        {"head_dim": None, "num_key_value_heads": None, "layer_types": None, "full_attention_interval": None},
        {"sliding_window": 512},
        {"sliding_window": 128, "use_sliding_window": False},
        {"sliding_window": 128, "layer_types": ["full_attention"] * 4},
        {"sliding_window": None, "kv_lora_rank": None, "is_encoder_decoder": False},
        {"shared_expert_intermediate_size": 0},
    ],
)
def test_what_says_nothing_changes_nothing(change: dict[str, Any]) -> None:
    """null is how transformers writes what is left out; a window of the whole context is none."""
    assert sizes(text(**change)) == sizes(text())


@pytest.mark.parametrize("factor", ["0.5", 0, 2, [1], float("nan")])
def test_a_rotation_of_nonsense_is_one_line(factor: object) -> None:
    assert sizes(text(rope_parameters={"partial_rotary_factor": 0.5})).rotary == 8
    with pytest.raises(CheckpointError, match="partial_rotary_factor"):
        sizes(text(rope_parameters={"partial_rotary_factor": factor}, partial_rotary_factor=factor or -1))


@pytest.mark.parametrize("experts", ["num_local_experts", "n_routed_experts"])
def test_other_words_for_experts(experts: str) -> None:
    chosen = {experts: 8, "num_experts_per_tok": 2}
    assert sizes(text(**chosen)).widest == 2 * (3 * 128 + 64) + 8
    assert sizes(text(**chosen, moe_intermediate_size=512)).widest == 2 * (3 * 512 + 64) + 8


def test_gdn_layers_without_a_pattern_have_the_models_own() -> None:
    names = ("linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads", "linear_value_head_dim")
    model = sizes(text(linear_conv_kernel_dim=4, **dict.fromkeys(names, 2)))
    assert (model.attention_layers, model.gdn_layers) == (1, 3)
