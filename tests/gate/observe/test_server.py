"""Identity and counters as a server reports them, and what happens when it reports nonsense."""

from __future__ import annotations

import pytest

from gate.arm.fake import FakeServer
from gate.arm.fake_script import Script, preset
from gate.errors import ArmError
from gate.observe import server


@pytest.mark.parametrize("flavour", ["good", "engine"])
def test_identity_is_read_back(flavour: str) -> None:
    script = preset(flavour, model="m", max_model_len=256, kv_cache_dtype="bfloat16")
    with FakeServer(script) as fake:
        one, two = server.identify(fake.url, "candidate"), server.identify(fake.url, "candidate")
    assert (one.model, one.max_model_len, one.prefix_caching, one.kv_cache_dtype) == ("m", 256, False, "bfloat16")
    assert one.version == script.version
    assert one == two


def test_any_changed_setting_changes_the_digest() -> None:
    scripts = [
        Script(),
        Script(version="0.25.1"),
        Script(max_model_len=9),
        Script(prefix_caching=True),
        Script(model="x"),
    ]
    digests = set()
    for script in scripts:
        with FakeServer(script) as fake:
            digests.add(server.identify(fake.url, "oracle").digest)
    assert len(digests) == len(scripts)


def test_what_free_memory_decides_is_no_other_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    def metrics(blocks: int, size: int) -> str:
        return f'vllm:cache_config_info{{block_size="{size}",num_gpu_blocks="{blocks}"}} 1.0\n'

    seen = []
    with FakeServer(Script()) as fake:
        for blocks, size in ((100, 16), (101, 16), (100, 32)):
            text = metrics(blocks, size)
            answer = server._text
            with monkeypatch.context() as patch:
                patch.setattr(
                    server, "_text", lambda c, path, t=text, a=answer: t if path == "/metrics" else a(c, path)
                )
                seen.append(server.identify(fake.url, "oracle"))
    one, more_blocks, other_size = seen
    assert one.digest == more_blocks.digest != other_size.digest
    assert more_blocks.extra["config.num_gpu_blocks"] == "101"


def test_absent_server_is_an_arm_error() -> None:
    with pytest.raises(ArmError, match="of the oracle names no model"):
        server.identify("http://127.0.0.1:9", "oracle")
    assert server.counters("http://127.0.0.1:9") == server.Counters(None, None)
    assert server.start_time("http://127.0.0.1:9") is None


def test_served_model_is_the_planned_one_or_the_only_one() -> None:
    with FakeServer(preset("good", model="only")) as fake:
        assert server.served_model(fake.url, "only") == "only"
        assert server.served_model(fake.url, "") == "only"
        with pytest.raises(ArmError, match="serves only; expected other"):
            server.served_model(fake.url, "other")
    with pytest.raises(ArmError, match="serves no model; expected exactly one model"):
        server.served_model("http://127.0.0.1:9", "")


def test_counters_are_differences_and_unknown_stays_unknown() -> None:
    after, before = server.Counters(10, None), server.Counters(4, 2)
    assert after.since(before) == server.Counters(6, None)


@pytest.mark.parametrize("text", [None, "", "not prometheus {", "vllm:other 1"])
def test_nonsense_metrics_count_as_not_counted(text: str | None) -> None:
    assert server._total(text, "num_preemptions") is None


def test_totals_with_and_without_suffix_and_labels() -> None:
    text = 'engine:num_preemptions_total{engine="0"} 2.0\nengine:num_preemptions_total{engine="1"} 3.0\n'
    assert server._total(text, "num_preemptions") == 5
    assert server._total("# TYPE vllm:num_preemptions counter\nvllm:num_preemptions_total 4\n", "num_preemptions") == 4


def test_the_peak_of_device_memory_is_carried_over_not_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    gauge = 'engine:device_memory_peak_bytes{engine="0",model_name="m"} 8.5899e+09\n'
    texts = iter([gauge, gauge, "engine:num_preemptions 0\n"])
    monkeypatch.setattr(server, "_text", lambda *_: next(texts))
    before, after, silent = (server.counters("http://127.0.0.1:9") for _ in range(3))
    assert after.since(before).device_peak_bytes == 8_589_900_000
    assert silent.since(before).device_peak_bytes is None


def test_what_was_logged_is_part_of_who_it_is() -> None:
    with FakeServer(Script()) as fake:
        plain = server.identify(fake.url, "oracle")
        eager = server.identify(fake.url, "oracle", {"enforce_eager": "True"})
    assert eager.extra["log.enforce_eager"] == "True"
    assert plain.extra.items() <= eager.extra.items()
    assert plain.digest != eager.digest
