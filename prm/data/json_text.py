"""JSON in and out: lenient in reading, exact about values, strict in writing.

Reading accepts what Python's parser accepts and notes each oddity: NaN, Infinity and 1e400 become
null, of two equal keys the last is kept, lone surrogates stay. Integers of any size stay exact (up
to the 4,300 digits that Python converts). Writing is strict UTF-8 JSON; what would not read back
equal (NaN, tuples, keys that are no strings) is refused with its path.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

import msgspec

from prm.data.trace import Trace
from prm.errors import PRMError, RecordError

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Trace)


def parse_json(raw: bytes, notes: Counter[str], uri: str, line: int | None, offset: int) -> Any:
    """The value of one record; ``line`` and ``offset`` (bytes) say where it starts in its file."""

    def number(text: str) -> float | None:
        value = float(text)  # the tokens NaN, Infinity and -Infinity, too
        if math.isfinite(value):
            return value
        notes["nonfinite_number"] += 1
        return None

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(items)
        notes["duplicate_key"] += len(items) - len(value)
        return value

    try:
        text = raw.decode()
        value = json.loads(text, parse_float=number, parse_constant=number, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise json_error(error, raw, uri, line, offset) from None
    if _SURROGATE_ESCAPE.search(raw):
        notes["lone_surrogate"] += _lone_surrogates(value)
    notes += Counter()  # keep only what occurred
    return value


def json_error(
    error: ValueError | RecursionError, raw: bytes, uri: str, line: int | None, offset: int
) -> RecordError:
    """The sentence for text that is not JSON; ``line`` and ``offset`` say where ``raw`` starts."""
    position, expected, found = 0, "valid JSON", str(error)
    if isinstance(error, UnicodeDecodeError):
        position = error.start
        expected, found = "valid UTF-8", f"the byte 0x{raw[position]:02x} ({error.reason})"
    elif isinstance(error, json.JSONDecodeError):
        position = len(error.doc[: error.pos].encode(errors="surrogatepass"))
        near = error.doc[error.pos : error.pos + 20]
        found = f"{near!r}" if near else "the end of the text"
        found += f" ({error.msg[0].lower()}{error.msg[1:]})"
    elif isinstance(error, RecursionError):
        found = "a value that is nested too deeply"
    if line is not None:
        line += raw.count(b"\n", 0, position)
    return RecordError(uri, line=line, offset=offset + position, expected=expected, found=found)


def decode_own(raw: bytes) -> Trace | None:
    """A record in exactly the bytes that :func:`encode_trace` writes, or None.

    Equal bytes prove that nothing was lost (unknown keys, repeated keys, number formats), so the
    fast typed decoder may be used; anything else takes the careful path.
    """
    try:
        trace = _DECODER.decode(raw)
        return trace if _ENCODER.encode(trace) == raw else None
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None


def encode_trace(trace: Trace) -> bytes:
    """One line of strict UTF-8 JSON, without the line end.

    Raises :class:`PRMError` when the record would not read back equal, naming the JSON path.
    """
    trace.check()
    try:
        raw, read_back = _encode(trace)
    except (TypeError, ValueError, RecursionError) as error:
        raise PRMError(f"trace {trace.id!r} cannot be written as JSON: {error}") from None
    if read_back != trace:
        raise RecordError(
            f"trace {trace.id!r}",
            path=_inexact(trace, "$"),
            expected="a string, finite number, boolean, null, list, or dict with string keys",
            found="a value that would not read back equal from JSON",
        )
    return raw


def _encode(trace: Trace) -> tuple[bytes, Trace]:
    """The bytes, and what is read back from them."""
    try:
        raw = _ENCODER.encode(trace)
        return raw, _DECODER.decode(raw)
    except UnicodeEncodeError:  # msgspec cannot write lone surrogates; here they are escaped
        value = msgspec.to_builtins(trace)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text = _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
        return text.encode(), msgspec.convert(json.loads(text), Trace)


def _inexact(value: Any, path: str) -> str | None:
    """The path of the first value that JSON cannot hold exactly."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, list):
        found = (_inexact(item, f"{path}[{index}]") for index, item in enumerate(value))
        return next((p for p in found if p), None)
    if isinstance(value, dict):
        found = (
            _inexact(item, f"{path}.{key}") if isinstance(key, str) else f"{path}[{key!r}]"
            for key, item in value.items()
        )
        return next((p for p in found if p), None)
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    return None if value is None or isinstance(value, bool | int | str) else path


def _lone_surrogates(value: Any) -> int:
    if isinstance(value, str):
        return len(_SURROGATE.findall(value))
    if isinstance(value, list):
        return sum(map(_lone_surrogates, value))
    if isinstance(value, dict):
        return sum(_lone_surrogates(key) + _lone_surrogates(item) for key, item in value.items())
    return 0
