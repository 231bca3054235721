"""4 Bytes -> server-sent events, by the WHATWG rules, whatever the reads' boundaries. Pure.

A parser of our own because what matters here is what the libraries get wrong: splitting lines at U+2028 inside JSON,
knowing LF LF only, stripping spaces that belong to the text, decoding half a character. Lines are split as bytes (CR
and LF never occur inside a UTF-8 sequence) and decoded whole.
Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n?|\n")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    data: str
    event: str = "message"


class Parser:
    """Feed reads in order; each returns the events that it completed. An unfinished event at the end is no event."""

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[str] = []
        self._event = ""
        self._after_cr = False
        self._first_line = True

    def feed(self, read: bytes) -> list[Event]:
        if self._after_cr and read:
            # A CR ended the line at once; the LF of a CRLF that was cut in two must not end another.
            self._after_cr = False
            read = read.removeprefix(b"\n")
        if not read:
            return []
        *lines, self._tail = _LINE_END.split(self._tail + read)
        self._after_cr = read.endswith(b"\r")
        events = []
        for line in lines:
            event = self._line(line)
            if event is not None:
                events.append(event)
        return events

    @property
    def pending(self) -> bool:
        """Whether bytes of an unfinished event are held: a stream that ends so was cut."""
        return bool(self._tail or self._data)

    def _line(self, line: bytes) -> Event | None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        return None  # comments (empty name), id, retry and unknown fields say nothing about tokens

    def _dispatch(self) -> Event | None:
        data, event = self._data, self._event
        self._data, self._event = [], ""
        if not data:
            return None
        return Event("\n".join(data), event or "message")
