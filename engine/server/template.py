"""The checkpoint's chat template, rendered in jinja2's immutable sandbox: it is data from outside, not our code."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.server.errors import ApiError, shown

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class ChatTemplate:
    """Messages to the prompt's text. `source` is jinja as the checkpoint ships it."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        env.filters["tojson"] = _tojson
        env.globals.update(raise_exception=_raise, strftime_now=_strftime_now)
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self._template = env.from_string(source)
        self._takes_parts = self._probe()

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate | None:
        """chat_template.jinja wins over tokenizer_config.json's field, as in transformers; None where neither is."""
        config_path, own_path = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        config: dict[str, Any] = json.loads(config_path.read_text()) if config_path.is_file() else {}
        source = own_path.read_text() if own_path.is_file() else config.get("chat_template")
        if isinstance(source, list):
            source = {entry["name"]: entry["template"] for entry in source}.get("default")
        if not source:
            return None
        special = {name: _content(config[name]) for name in ("bos_token", "eos_token", "pad_token") if config.get(name)}
        return cls(source, special)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, kwargs: Mapping[str, Any]
    ) -> str:
        """Raises ApiError 400 with the template's own complaint, or where a message is not text."""
        checked = [self._message(index, message) for index, message in enumerate(messages)]
        try:
            return self._template.render(
                **{**self._special_tokens, **kwargs},
                messages=checked,
                add_generation_prompt=add_generation_prompt,
            )
        except Exception as error:  # a template is a program: whatever it raises is its answer to these messages
            reason = str(error) or type(error).__name__
            raise ApiError(f"the chat template refuses these messages: {reason[:500]}", param="messages") from error

    def thinks(self) -> bool:
        """Whether this model writes <think> … </think>."""
        return "<think>" in self.source

    def _message(self, index: int, message: Mapping[str, Any]) -> dict[str, Any]:
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise ApiError(
                f"messages[{index}] has role {shown(role)}; expected one of {', '.join(sorted(ROLES))}",
                param="messages",
            )
        if message.get("tool_calls") or role == "tool":
            raise ApiError(f"messages[{index}]: tool calls are not supported", param="messages")
        content = message.get("content")
        if content is None and role == "assistant":
            content = ""
        if isinstance(content, list):
            texts = [_text_of(index, part) for part in content]
            content = [{"type": "text", "text": t} for t in texts] if self._takes_parts else "\n".join(texts)
        elif not isinstance(content, str):
            raise ApiError(f"messages[{index}].content must be a text or a list of text parts", param="messages")
        return {**message, "content": content}

    def _probe(self) -> bool:
        """Whether the template walks lists of parts itself: ask it, since sources say it in many ways."""
        part = {"type": "text", "text": "probe"}
        try:
            shown = self._template.render(
                **self._special_tokens, messages=[{"role": "user", "content": [part]}], add_generation_prompt=False
            )
        except Exception:  # noqa: BLE001  (as in `render`: its answer is that it takes no parts)
            return False
        return "probe" in shown and "'text'" not in shown and '"text"' not in shown


def _text_of(index: int, part: object) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise ApiError(f"messages[{index}] has a part of type {shown(kind)}; this engine takes text only", param="messages")


def _content(token: object) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _tojson(value: object, indent: int | None = None, ensure_ascii: bool = False) -> str:
    """jinja's own filter escapes HTML, which would change what the model reads."""
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(form)
