"""Output files that appear complete or not at all.

The bytes go to a temporary file in the same folder, which is renamed when everything is written;
on any failure, Ctrl-C included, it is removed. A killed process may leave the temporary file, whose
name starts with a dot and ends in ``.tmp``, but never a partial file under the final name. Folders
that are missing are made.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from prm.errors import PRMError


@contextmanager
def atomic_output(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file that becomes ``path`` when the block ends without an exception."""
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, final)
    except OSError as error:
        if error.filename not in (None, str(temporary), str(final.parent)):
            raise  # another file's trouble
        raise PRMError(f"{final}: cannot be written ({error.strerror or error})") from None
    finally:
        with suppress(OSError):  # what cannot be removed was never made
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder beside ``path`` that becomes it when the block ends without an exception.

    ``path`` must not be there yet, or be an empty folder: see :func:`check_new_folder`.
    """
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if final.is_dir():
            final.rmdir()
        os.replace(temporary, final)
    except OSError as error:
        raise PRMError(f"{final}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_new_folder(path: str | os.PathLike[str]) -> None:
    """Raise :class:`PRMError` before any work when ``path`` cannot become a new folder."""
    final = Path(path)
    if not os.fspath(path):
        raise PRMError("--out: expected the name of a folder, found an empty one")
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        raise PRMError(
            f"{path}: expected a new or empty folder, so that nothing is overwritten or mixed"
        )
    check_output(final / "report", [])


def check_output(path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]]) -> None:
    """Raise :class:`PRMError` before any work when ``path`` cannot become an output file.

    ``inputs`` are the files that are read, which no output may replace.
    """
    if not os.fspath(path):
        raise PRMError("an output needs a file name, found an empty one")
    final = Path(path)
    folder = next(parent for parent in final.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise PRMError(f"{final}: cannot be written, because {folder} is not a folder")
    if final.exists() and not final.is_file():
        kind = "a folder" if final.is_dir() else "no ordinary file"
        raise PRMError(f"{final}: cannot be written, because it is {kind}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PRMError(f"{final}: cannot be written (no permission in {folder})")
    for source in inputs:
        if final.exists() and os.path.exists(source) and os.path.samefile(final, source):
            raise PRMError(f"{final}: cannot be written, because it is also an input")


def check_new_output(path: str | os.PathLike[str]) -> None:
    """As :func:`check_output`, for a file that may not be there yet."""
    if os.path.lexists(path):
        raise PRMError(
            f"{path}: is there already and is never overwritten; name another or move it"
        )
    check_output(path, [])


def new_outputs(folder: str, names: Iterable[str]) -> list[Path]:
    """The paths FOLDER/name; :class:`PRMError` unless all can become new files."""
    if not folder:
        raise PRMError("--out: expected the name of a folder, found an empty one")
    paths = [Path(folder) / name for name in names]
    for path in paths:
        check_new_output(path)
    return paths
