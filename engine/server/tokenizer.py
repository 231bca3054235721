"""The checkpoint's own tokenizer.json: text to ids, ids to text, one token's bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import tokenizers

from engine.server.text import ByteDetokenizer, Detokenizer, WindowDetokenizer


class Tokenizer:
    """A thin shell over `tokenizers`. Ids above its vocabulary (models pad theirs) decode to nothing."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        spec = json.loads(backend.to_str())
        self._byte_level = (spec.get("decoder") or {}).get("type") == "ByteLevel"
        self.special_ids = frozenset(i for i, t in backend.get_added_tokens_decoder().items() if t.special)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def load(cls, folder: Path) -> Tokenizer | None:
        """None where the folder has no tokenizer.json; ValueError where the file is not one."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            return None
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{path} is no tokenizer ({error}); copy it again from the checkpoint") from error

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def detokenizer(self, *, skip_special_tokens: bool) -> Detokenizer:
        """A fresh incremental decoder; the pieces of any sequence join to `decode` of the whole."""
        skip = self.special_ids if skip_special_tokens else frozenset()
        if self._byte_level:
            return ByteDetokenizer(lambda i: b"" if i in skip else self.token_bytes(i))
        return WindowDetokenizer(
            lambda ids: self._backend.decode(ids, skip_special_tokens=False),
            lambda i: i in skip or self._backend.id_to_token(i) is None,
        )

    def token_text(self, token_id: int) -> str:
        """One token alone, special or not; an incomplete character shows as U+FFFD."""
        if self._byte_level:
            return self.token_bytes(token_id).decode("utf-8", "replace")
        return self._backend.decode([token_id], skip_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for: exact for byte-level vocabularies, else its text in UTF-8."""
        found = self._bytes.get(token_id)
        if found is None:
            token = self._backend.id_to_token(token_id)
            if token is None:
                found = b""
            elif self._byte_level:
                found = _from_glyphs(token)
            else:
                found = self.token_text(token_id).encode()
            self._bytes[token_id] = found
        return found


@lru_cache(maxsize=1)
def _glyphs() -> dict[str, int]:
    """GPT-2's table: printable bytes stand for themselves, the other 68 for the code points from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    others = (b for b in range(256) if b not in set(printable))
    table.update({chr(256 + n): b for n, b in enumerate(others)})
    return table


def _from_glyphs(token: str) -> bytes:
    """Undo the table; a token with any other character (an added one) stands for its own UTF-8."""
    table = _glyphs()
    try:
        return bytes([table[c] for c in token])
    except KeyError:
        return token.encode()
