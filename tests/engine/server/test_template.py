"""The template's sandbox, its helpers, and where it is found."""

from __future__ import annotations

import json

import pytest

from engine.server.errors import ApiError
from engine.server.template import ChatTemplate

HI = [{"role": "user", "content": "hi"}]


def render(source, messages=HI, **kwargs):
    return ChatTemplate(source).render(messages, add_generation_prompt=True, kwargs=kwargs)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
    ],
)
def test_the_sandbox_holds(source):
    with pytest.raises(ApiError, match="template refuses"):
        render(source)


def test_the_template_s_own_complaint_reaches_the_client():
    with pytest.raises(ApiError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_tojson_escapes_nothing_and_loops_can_break():
    assert render("{{ x | tojson }}", x={"a": "<é>"}) == '{"a": "<é>"}'
    assert render("{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "1"


def test_lists_of_parts_go_to_templates_that_walk_them():
    walks = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}"
    )
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert render(walks, parts) == "[a][b]"
    assert render("{% for m in messages %}{{ m.content }}{% endfor %}", parts) == "a\nb"


def test_own_file_wins_and_special_tokens_are_known(tmp_path):
    assert ChatTemplate.load(tmp_path) is None
    config = {"chat_template": "config", "bos_token": {"content": "<b>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert ChatTemplate.load(tmp_path).render(HI, add_generation_prompt=True, kwargs={}) == "config"
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}own")
    assert ChatTemplate.load(tmp_path).render(HI, add_generation_prompt=True, kwargs={}) == "<b>own"
    (tmp_path / "chat_template.jinja").unlink()
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert ChatTemplate.load(tmp_path).render(HI, add_generation_prompt=True, kwargs={}) == "yes"
