"""From a stream of bytes to raw records: JSON Lines, or a JSON document.

JSON Lines are streamed and split on newline bytes only. A document (one object, an array of
records, an object keyed by numbers, or objects one after another) is read whole and cut without
changing a byte of a record. Which it is, the first two lines tell, never the suffix (BFCL publishes
JSON Lines as ``.json``). Damage to the stream or to a document's structure is always an error,
because what comes after it cannot be told.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any, BinaryIO, NamedTuple

import zstandard

from prm.data.json_text import json_error, parse_json
from prm.errors import PRMError, RecordError, printable

# Finds where a value ends and judges nothing about its numbers.
_SCANNER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
_SPACE = re.compile(r"[ \t\r\n]*")
_KEYED = re.compile(r'\{\s*"\d+"\s*:\s*\{')


class Raw(NamedTuple):
    """The bytes of one record and where they were."""

    uri: str
    number: int
    """0-based number of the record in its file."""
    raw: bytes
    line: int | None = None
    """1-based line where the record starts; None in a table."""
    offset: int = 0
    """Byte where the record starts, in the uncompressed file."""
    key: str | None = None
    """The record's key, in a document keyed by numbers."""
    nested: bool = False
    """The record comes from a table with nested columns."""

    @property
    def name(self) -> str:
        """The file; with the row, where there are no lines."""
        return self.uri if self.line is not None else f"{self.uri} (row {self.number})"

    @property
    def where(self) -> str:
        """The place, short."""
        return self.name if self.line is None else f"{self.name}:{self.line}"

    def error(
        self, path: str | None, expected: str, found: str, why: str | None = None
    ) -> RecordError:
        """The complaint about the value at the JSON path ``path`` of this record."""
        return RecordError(
            self.name,
            line=self.line,
            offset=None if self.line is None else self.offset,
            path=None if path is None else printable(path),
            expected=expected,
            found=printable(found),
            why=why,
        )

    def parse(self, notes: Counter[str]) -> Any:
        """The record's JSON value; oddities are noted."""
        return parse_json(self.raw, notes, self.name, self.line, self.offset)


class _Line(NamedTuple):
    number: int
    offset: int
    raw: bytes

    @property
    def text(self) -> bytes:
        return self.raw.strip(b" \t\r\n")


def _lines(stream: BinaryIO, uri: str) -> Iterator[_Line]:
    number, offset = 1, 0
    while True:
        try:
            raw = stream.readline()
        except (EOFError, OSError, zlib.error, zstandard.ZstdError) as error:
            raise RecordError(
                uri,
                line=number,
                offset=offset,
                expected="a complete, readable file",
                found=f"{error}".rstrip("."),
                why="everything before this line is intact",
            ) from None
        if not raw:
            return
        if number == 1 and raw.startswith(b"\xef\xbb\xbf"):  # the byte order mark is no content
            raw, offset = raw[3:], 3
        yield _Line(number, offset, raw)
        number, offset = number + 1, offset + len(raw)


def split_records(stream: BinaryIO, uri: str) -> Iterator[Raw]:
    """The records of an uncompressed stream; ``uri`` names it in errors."""
    lines = _lines(stream, uri)
    head: list[_Line] = []
    for line in lines:
        head.append(line)
        if sum(bool(line.text) for line in head) == 2:
            break
    first = [line.text for line in head if line.text]
    if not first:
        raise PRMError(f"{uri}: expected at least one record, found an empty file")
    if _is_json_lines(first):
        filled = (line for line in chain(head, lines) if line.text)
        for number, line in enumerate(filled):
            yield Raw(uri, number, line.text, line.number, line.offset)
    else:
        data = b"".join(line.raw for line in chain(head, lines))
        yield from _Document(data, uri, head[0].offset).records()


def _is_json_lines(first: list[bytes]) -> bool:
    """Whether a file that opens with these (one or two) non-blank lines has one record a line."""
    if len(first) == 1:
        return False  # a lone value: the document reader handles it
    if _is_complete(first[0]):
        return True
    # A damaged first line: no indented document has a complete object as its second line.
    return all(line.startswith(b"{") for line in first) and _is_complete(first[1])


def _is_complete(line: bytes) -> bool:
    try:
        _SCANNER.decode(line.decode())
    except (ValueError, RecursionError):
        return False
    return True


class _Document:
    """A JSON document in memory, cut into records without changing a byte of them."""

    def __init__(self, data: bytes, uri: str, offset: int) -> None:
        self._data, self._uri, self._offset = data, uri, offset
        try:
            self._text = data.decode()
        except UnicodeDecodeError as error:
            raise json_error(error, data, uri, 1, offset) from None
        self._at = 0  # the cursor, in characters
        self._number = 0
        self._counted = (0, offset, 1)  # characters, and the byte and line that they lead to

    def records(self) -> Iterator[Raw]:
        while self._peek():
            if self._peek() == "[" and not self._is_conversation():
                yield from self._members("]", keyed=False)
            elif _KEYED.match(self._text, self._at):
                yield from self._members("}", keyed=True)
            else:
                yield self._record(None)
        if not self._number:
            raise PRMError(f"{self._uri}: expected at least one record, found an empty list")

    def _members(self, close: str, *, keyed: bool) -> Iterator[Raw]:
        self._at += 1
        if self._peek() != close:
            yield self._record(self._key() if keyed else None)
        while self._peek() != close:
            self._take(",")
            yield self._record(self._key() if keyed else None)
        self._take(close)

    def _record(self, key: str | None) -> Raw:
        self._peek()
        start = self._at
        _, self._at = self._scan(start)
        before, offset, line = self._counted
        offset += len(self._text[before:start].encode())
        line += self._text.count("\n", before, start)
        self._counted = (start, offset, line)
        self._number += 1
        raw = self._text[start : self._at].encode()
        return Raw(self._uri, self._number - 1, raw, line, offset, key)

    def _is_conversation(self) -> bool:
        """Whether the list at the cursor holds the messages of one record, not records."""
        start = _SPACE.match(self._text, self._at + 1).end()  # type: ignore[union-attr]
        if self._text[start : start + 1] != "{":
            return False
        first, _ = self._scan(start)
        return isinstance(first.get("role"), str) and "messages" not in first

    def _key(self) -> str:
        self._peek()
        key, self._at = self._scan(self._at)
        self._take(":")
        return str(key)

    def _peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
        return self._text[self._at : self._at + 1]

    def _take(self, character: str) -> None:
        if self._peek() != character:
            error = json.JSONDecodeError(f"expecting {character!r}", self._text, self._at)
            raise json_error(error, self._data, self._uri, 1, self._offset)
        self._at += 1

    def _scan(self, start: int) -> tuple[Any, int]:
        try:
            return _SCANNER.raw_decode(self._text, start)
        except (json.JSONDecodeError, RecursionError) as error:
            raise json_error(error, self._data, self._uri, 1, self._offset) from None
