"""The one family of errors meant for people, each a sentence, and the words that sentences share.

The command line prints the sentence and leaves with status 1; the library raises it.
"""

from __future__ import annotations

from collections.abc import Iterable


def printable(text: str) -> str:
    """The text with control characters escaped: data may hold what moves a terminal's cursor.

    >>> print(printable("a\\nb \\x1b[2J"))
    a\\nb \\x1b[2J
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def listed(parts: Iterable[str]) -> str:
    """The parts, told apart by commas, or by semicolons where a part has a comma.

    >>> listed(["mix", "outcome"]), listed(["critic", "critic, oracle"])
    ('mix, outcome', 'critic; critic, oracle')
    """
    every = list(parts)
    return ("; " if any("," in part for part in every) else ", ").join(every)


def plural(count: int, noun: str) -> str:
    """A number with its noun.

    >>> plural(1, "task"), plural(1200, "task")
    ('1 task', '1,200 tasks')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class PRMError(Exception):
    """Something that the user can mend: the message is one clear sentence."""


class RecordError(PRMError):
    """One record of a file cannot be read.

    The sentence says where (file, line, byte offset, JSON path), what was expected and what was
    found. Readers that were given a rejects file catch it, keep the record's bytes, and go on.

    >>> print(RecordError("a.jsonl", line=3, path="$.id", expected="a string", found="7"))
    a.jsonl:3: at $.id: expected a string, found 7
    """

    def __init__(
        self,
        uri: str,
        *,
        expected: str,
        found: str,
        line: int | None = None,
        offset: int | None = None,
        path: str | None = None,
        why: str | None = None,
    ) -> None:
        self.uri, self.line, self.offset, self.path = uri, line, offset, path
        self.expected, self.found, self.why = expected, found, why
        where = uri if line is None else f"{uri}:{line}"
        if offset is not None:
            where += f" (byte {offset})"
        at = f": at {path}" if path else ""
        because = f" ({why})" if why else ""
        super().__init__(f"{where}{at}: expected {expected}, found {found}{because}")
