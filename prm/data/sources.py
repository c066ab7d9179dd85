"""From paths to raw records: folders, globs, compression, tables.

What a file holds is found from content, never from the suffix: gzip, zstd and Parquet by their
first bytes, JSON by its first lines (``splitting``). Compressed files may have many members or
frames; a cut one is an error.
"""

from __future__ import annotations

import glob
import gzip
import io
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from prm.data.splitting import Raw, split_records
from prm.data.tables import TABLE, read_parquet, read_saved_dataset
from prm.errors import PRMError

SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet")
COMPRESSED = (".gz", ".zst")
STDIN = "-"
_STDIN_NAME = "<stdin>"


def stem(uri: str) -> str | None:
    """The name of a file without folder and suffixes; None for what is no file.

    >>> stem("runs/gpt-4.1.jsonl.gz")
    'gpt-4.1'
    """
    if uri in (_STDIN_NAME, TABLE):
        return None
    path = Path(uri)
    for suffixes in (COMPRESSED, SUFFIXES):
        if path.suffix in suffixes:
            path = path.with_suffix("")
    return path.name


def expand(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[str], list[str]]:
    """The files (and saved datasets) that ``paths`` name, and the skipped files of folders.

    A path that exists is taken as it is, otherwise as a glob. Sorted inside each folder and glob.
    """
    found: list[str] = []
    skipped: list[str] = []
    for path in (os.fspath(each) for each in paths):
        matches = [path] if path == STDIN or os.path.exists(path) else sorted(glob.glob(path))
        if not matches:
            raise PRMError(f"{path}: no such file, folder or glob match")
        for match in matches:
            if os.path.isdir(match) and not _is_saved_dataset(match):
                inside = _listing(match)
                traces = [name for name in inside if _is_trace_file(name)]
                if not traces:
                    raise PRMError(f"{match}: expected trace files ({_kinds()}), found none")
                found += traces
                skipped += [name for name in inside if not _is_trace_file(name)]
            else:
                found.append(match)
    return found, skipped


def read_raw(uri: str) -> Iterator[Raw]:
    """The records of one file, saved dataset, or standard input (``-``)."""
    if uri == STDIN:
        if sys.stdin is None:
            raise PRMError(f"{_STDIN_NAME}: cannot be read, because it is closed")
        yield from _unpacked(sys.stdin.buffer, _STDIN_NAME)
    elif os.path.isdir(uri):
        yield from read_saved_dataset(uri)
    else:
        with _open(uri) as file:
            yield from _unpacked(file, uri)


def _unpacked(file: Any, uri: str) -> Iterator[Raw]:
    """The records of an open file, a ``BufferedReader``, whatever it is packed in."""
    magic = file.peek(4)[:4]
    if magic == b"PAR1":
        # Its table of contents is at its end, which a pipe does not reach at once.
        yield from read_parquet(file if file.seekable() else io.BytesIO(file.read()), uri)
    elif magic[:2] == b"\x1f\x8b":
        yield from split_records(io.BufferedReader(gzip.GzipFile(fileobj=file)), uri)
    elif magic == zstandard.FRAME_HEADER:
        yield from split_records(io.BufferedReader(_ZstdFrames(file)), uri)
    else:
        yield from split_records(file, uri)


def _open(path: str) -> io.BufferedReader:
    try:
        return open(path, "rb")
    except OSError as error:
        raise PRMError(f"{path}: cannot be read ({error.strerror})") from None


def _listing(folder: str) -> list[str]:
    try:
        return sorted(os.path.join(folder, name) for name in os.listdir(folder))
    except OSError as error:
        raise PRMError(f"{folder}: cannot be read ({error.strerror})") from None


def _is_trace_file(path: str) -> bool:
    suffixes = Path(path).suffixes
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return os.path.isfile(path) and bool(suffixes) and suffixes[-1] in SUFFIXES


def _kinds() -> str:
    return f"{', '.join(SUFFIXES)}, each also with {' or '.join(COMPRESSED)}"


def _is_saved_dataset(path: str) -> bool:
    names = ("dataset_dict.json", "dataset_info.json")
    return any(os.path.isfile(os.path.join(path, name)) for name in names)


class _ZstdFrames(io.RawIOBase):
    """All frames of a zstd file; a cut frame is an error (zstandard's reader ends in silence)."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._frame: Any = None
        self._unpacked = b""
        self._packed = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._unpacked:
            packed = self._packed or self._file.read(1 << 16)
            self._packed = b""
            if not packed:
                if self._frame is not None:
                    raise EOFError("the last zstd frame is cut off")
                return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._unpacked = self._frame.decompress(packed)
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._unpacked))
        buffer[:size], self._unpacked = self._unpacked[:size], self._unpacked[size:]
        return size
