"""The tokenizer of a synthetic checkpoint: byte-level BPE whose every merge ends in a whole word.

A plain word-level model was tried first and does not survive: for `qwen3_5` transformers rebuilds the tokenizer as
Qwen's byte-level BPE from the vocabulary and merges alone. So it is that BPE: 11 specials, 256 bytes, then " a".." z",
" aa".." zz", " aaa".. up to the vocabulary's size, each its predecessor plus one letter. Any text round-trips, ids of
words round-trip through text, and bytes of one character may fall into several tokens, as they do in real models.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice, product
from string import ascii_lowercase
from typing import Any

SPECIAL = ("<unk>", "<pad>", "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|image_pad|>", "<|video_pad|>",
           "<|vision_start|>", "<|vision_end|>", "<think>", "</think>")  # fmt: skip
NOT_HIDDEN = ("<think>", "</think>")
"""Added tokens that stay in decoded text: clients split reasoning at them."""

# Qwen's published pre-tokeniser: a word takes the one space before it, digits stand alone.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Text stands in expressions, since renderers differ in whether they trim the newline after a block.
CHAT_TEMPLATE = (
    r"{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    r"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}"
    r"{% if enable_thinking is defined and enable_thinking is false %}{{ '\n</think>\n\n' }}{% endif %}{% endif %}"
)


def byte_symbols() -> list[str]:
    """The printable character that byte-level BPE writes for each byte: itself, or the next one from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = count(0x100)
    return [chr(b if b in printable else next(spare)) for b in range(256)]


def words() -> Iterator[str]:
    """Letters only, shortest first, so that every word's predecessor comes before it."""
    for length in count(1):
        yield from map("".join, product(ascii_lowercase, repeat=length))


def tokenizer(vocab_size: int) -> dict[str, Any]:
    """tokenizer.json with exactly `vocab_size` entries."""
    symbols = byte_symbols()
    space = symbols[ord(" ")]
    known = list(islice(words(), vocab_size - len(SPECIAL) - len(symbols)))
    names = [*SPECIAL, *symbols, *(space + w for w in known)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": c, **flags, "special": c not in NOT_HIDDEN} for i, c in enumerate(SPECIAL)
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False},
                byte_level,
            ],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {name: i for i, name in enumerate(names)},
            "merges": [f"{space}{w[:-1]} {w[-1]}" for w in known],
        },
    }


def tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 262144,
        "chat_template": CHAT_TEMPLATE,
    }
