"""msgspec's complaints about a value of the wrong type, as the parts of our sentences.

msgspec writes ``Expected `int`, got `str` - at `$.steps[0].at```, leaves out the key of a mapping
(``$.labels[...]``) and the values that an enumeration allows; here both are found again.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, get_args

import msgspec

from prm.data.trace import Status

_JSON_TYPES = {
    bool: "bool", dict: "object", float: "float", int: "int", list: "array", str: "str",
    type(None): "null",
}  # fmt: skip
_UNNAMED = "[...]"


class Complaint(NamedTuple):
    """What is wrong with a value."""

    path: str
    expected: str
    found: str


def complaint(error: msgspec.ValidationError, value: Any) -> Complaint:
    """The complaint that ``error`` makes about ``value``, which could not be converted.

    >>> try:
    ...     msgspec.convert({"a": 1, "b": "x"}, dict[str, float])
    ... except msgspec.ValidationError as error:
    ...     complaint(error, {"a": 1, "b": "x"})
    Complaint(path="$['b']", expected='float', found='str')
    """
    text, _, path = str(error).replace("`", "").partition(" - at ")
    expected, _, found = text.partition(", got ")
    expected = expected.removeprefix("Expected ")
    if text.startswith("Invalid enum value "):
        # The one enumeration of the records.
        expected, found = f"one of {', '.join(get_args(Status))}", text.split(" ", 3)[3]
    elif text.startswith("Object missing required field "):
        expected, found = f"an object with the key {text.split(' ')[-1]}", "one without"
    elif not found:
        expected, found = "a valid value", text[:1].lower() + text[1:]
    return Complaint(_named(path or "$", found, value), expected, found)


def _named(path: str, found: str, value: Any) -> str:
    """The path with the key of the first entry of a mapping that has the type ``found`` there."""
    before, unnamed, after = path.partition(_UNNAMED)
    mapping = _at(value, before)
    if not unnamed or not isinstance(mapping, dict):
        return path
    keys = (
        key for key, item in mapping.items() if _JSON_TYPES.get(type(_at(item, after))) == found
    )
    key = next(keys, None)
    return path if key is None else f"{before}[{key!r}]{after}"


def _at(value: Any, path: str) -> Any:
    """The value at a path of keys and indices; the path itself is no JSON value if it leads out."""
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        if key and isinstance(value, dict) and key in value:
            value = value[key]
        elif index and isinstance(value, list) and int(index) < len(value):
            value = value[int(index)]
        else:
            return Ellipsis
    return value
