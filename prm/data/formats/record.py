"""What a format reader is given: one parsed record, where it was, and how to complain about it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgspec

from prm.data.sources import stem
from prm.data.splitting import Raw
from prm.data.trace import Source, Trace
from prm.data.typed import complaint
from prm.errors import RecordError

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record of a foreign format, ready to be turned into a trace."""

    place: Raw
    value: Any
    """The parsed JSON."""
    policy: str | None = None
    """The policy that the user named; it overrides the source's."""
    annotations: Mapping[str, dict[str, Any]] | None = None
    """trajectory id -> annotation, from a second file."""
    notes: Counter[str] = field(default_factory=Counter)
    """Diagnostic codes of this record."""

    @property
    def default_policy(self) -> str | None:
        """The policy where the source does not say: the name of the file, if there is one."""
        return self.policy if self.policy is not None else stem(self.place.uri)

    def path_id(self, *parts: object) -> str:
        """An id for a record whose source numbers it: policy/part/…"""
        return "/".join(str(part) for part in (self.default_policy, *parts) if part is not None)

    @property
    def hashed_id(self) -> str:
        """An id for a record whose source has none: a hash of file and record number."""
        return content_id(f"{self.place.uri}\0{self.place.number}")

    def source(self, format_name: str) -> Source:
        """Where the trace came from."""
        return Source(format=format_name, uri=self.place.uri, record=self.place.number)

    def as_type(self, value: Any, kind: type[T]) -> T:
        """The known keys of ``value``, typed; a wrong type raises with its JSON path."""
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise self.error(*complaint(error, value, kind)) from None

    def rest(self, *known: str) -> dict[str, Any]:
        """The record's other keys, verbatim, for ``Trace.meta``."""
        return {key: value for key, value in self.value.items() if key not in known}

    def error(self, path: str, expected: str, found: str, why: str | None = None) -> RecordError:
        """The complaint about the value at ``path``."""
        return self.place.error(path, expected, found, why)


class Format(NamedTuple):
    """One format: how to know its records and how to read one."""

    name: str
    summary: str
    """What a record looks like, for error messages."""
    matches: Callable[[Any], bool]
    """Whether a parsed JSON value is a record of this format."""
    read: Callable[[Record], Trace]
    takes_annotations: bool = False


def has_keys(*names: str) -> Callable[[Any], bool]:
    """A sniffer: an object with all of these keys."""
    return lambda value: isinstance(value, dict) and value.keys() >= set(names)


def content_id(value: object) -> str:
    """16 hex digits that depend on the JSON value alone.

    >>> content_id([{"role": "user", "content": "hi"}])
    '4e79873118cd9be7'
    """
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
