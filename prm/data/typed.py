"""msgspec's complaints about a value of the wrong type, as the parts of our sentences.

msgspec writes ``Expected `int`, got `str` - at `$.steps[0].at```, leaves out the key of a mapping
(``$.labels[...]``), the values that an enumeration allows and the keys that an object may have;
here all are found again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

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


def complaint(error: msgspec.ValidationError, value: Any, kind: Any) -> Complaint:
    """The complaint that ``error`` makes about ``value``, which could not be converted to ``kind``.

    >>> try:
    ...     msgspec.convert({"a": 1, "b": "x"}, dict[str, float])
    ... except msgspec.ValidationError as error:
    ...     complaint(error, {"a": 1, "b": "x"}, dict[str, float])
    Complaint(path="$['b']", expected='float', found='str')
    """
    text, _, path = str(error).replace("`", "").partition(" - at ")
    expected, _, found = text.partition(", got ")
    expected = expected.removeprefix("Expected ")
    if text.startswith("Invalid enum value "):
        found = text.split(" ", 3)[3]
        expected = f"one of {', '.join(_choices(inspect.type_info(kind), path))}"
    elif text.startswith("Object contains unknown field "):
        found = f"the key {text.split(' ')[-1]}"
        expected = f"the keys {', '.join(_choices(inspect.type_info(kind), path))} alone"
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


def _choices(kind: inspect.Type, path: str) -> list[str]:
    """The values that an enumeration at ``path`` allows, or the keys of the object there."""
    kinds = [kind]
    for key, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        kinds = [inner for one in _flat(kinds) for inner in _inside(one, key, index)]
    found: list[str] = []
    for one in _flat(kinds):
        if isinstance(one, inspect.LiteralType):
            found += map(str, one.values)
        elif isinstance(one, inspect.StructType | inspect.DataclassType):
            found += (field.encode_name for field in one.fields)
    return found


def _inside(kind: inspect.Type, key: str, index: str) -> Iterator[inspect.Type]:
    if key and isinstance(kind, inspect.StructType | inspect.DataclassType):
        yield from (field.type for field in kind.fields if field.encode_name == key)
    elif index and isinstance(kind, inspect.DictType):
        yield kind.value_type
    elif index and isinstance(kind, inspect.CollectionType):
        yield kind.item_type
    elif index.isdigit() and isinstance(kind, inspect.TupleType):
        yield kind.item_types[int(index)]


def _flat(kinds: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    for kind in kinds:
        yield from kind.types if isinstance(kind, inspect.UnionType) else (kind,)
