"""One name and one spelling for what two servers were set to."""

from __future__ import annotations

import pytest

from gate.observe import settings
from gate.observe.rows import Identity


def identity(**extra: str) -> Identity:
    said = {name.replace("__", "."): value for name, value in extra.items()}
    return Identity(
        arm="oracle",
        version=None,
        model=None,
        max_model_len=None,
        prefix_caching=None,
        kv_cache_dtype=None,
        extra=said,
        digest="d",
    )


@pytest.mark.parametrize(
    ("spell", "text", "expected"),
    [
        (settings.dtype, "torch.bfloat16", "bfloat16"),
        (settings.dtype, "BF16", "bfloat16"),
        (settings.dtype, "half", "float16"),
        (settings.dtype, "auto", None),
        (settings.word, "True", "true"),
        (settings.word, "auto", None),
        (settings.scheme, "modelopt_mixed", "modelopt"),
        (settings.scheme, "modelopt", "modelopt"),
        (settings.scheme, "compressed-tensors", "compressed-tensors"),
        (settings.scheme, "None", "none"),
        (settings.scheme, "auto", None),
        (settings.absent_or, "null", "none"),
        (settings.absent_or, "None", "none"),
        (settings.absent_or, "MTP(n=1)", "mtp(n=1)"),
        (settings.sampling, "{}", "{}"),
        (settings.sampling, '{"temperature": 1.0, "top_k": 20, "top_p": 0.95}', "{}"),
        (settings.sampling, "{'repetition_penalty': 1.05}", '{"repetition_penalty": 1.05}'),
        (settings.sampling, '{"repetition_penalty": 1, "presence_penalty": 0}', "{}"),
        (settings.sampling, '{"presence_penalty": 1}', '{"presence_penalty": 1.0}'),
        (settings.sampling, "SamplingParams()", None),
        (settings.sampling, "[]", None),
    ],
)
def test_spelling(spell: settings.Setting, text: str, expected: str | None) -> None:
    assert spell(text) == expected  # type: ignore[operator]


def test_http_is_trusted_before_the_log() -> None:
    found = settings.effective(identity(config__dtype="float32", log__dtype="torch.bfloat16"))
    assert found["dtype"] == "float32"


def test_an_unresolved_answer_falls_through_to_the_log() -> None:
    assert settings.effective(identity(config__dtype="auto", log__dtype="torch.bfloat16"))["dtype"] == "bfloat16"


def test_the_manifest_is_opened() -> None:
    found = identity(manifest='{"quantization": "modelopt", "threads": 2}')
    assert settings.effective(found)["quantization"] == "modelopt"
    assert settings.manifest(found)["threads"] == 2
    assert settings.manifest(identity(manifest="null")) == {}
    assert settings.manifest(identity(manifest="{")) == {}


def test_nothing_said_is_nothing_known() -> None:
    assert set(settings.effective(None).values()) == {None}
    assert set(settings.effective(identity()).values()) == {None}
