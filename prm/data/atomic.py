"""Output files that appear complete or not at all.

The bytes go to a temporary file in the same folder, which is renamed when everything is written;
on any failure, Ctrl-C included, it is removed. A killed process may leave the temporary file, whose
name starts with a dot and ends in ``.tmp``, but never a partial file under the final name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from prm.errors import PRMError


@contextmanager
def atomic_output(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file that becomes ``path`` when the block ends without an exception."""
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, final)
    except OSError as error:
        if error.filename not in (None, str(temporary)):
            raise  # another file's trouble
        raise PRMError(f"{final}: cannot be written ({error.strerror or error})") from None
    finally:
        temporary.unlink(missing_ok=True)


def check_output(path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]]) -> None:
    """Raise :class:`PRMError` before any work when ``path`` cannot become an output file."""
    final = Path(path)
    if not final.parent.is_dir():
        raise PRMError(f"{final}: cannot be written, because {final.parent} is not a folder")
    if final.is_dir():
        raise PRMError(f"{final}: cannot be written, because it is a folder")
    if not os.access(final.parent, os.W_OK | os.X_OK):
        raise PRMError(f"{final}: cannot be written (no permission in {final.parent})")
    for source in inputs:
        if final.exists() and os.path.exists(source) and os.path.samefile(final, source):
            raise PRMError(f"{final}: cannot be written, because it is also an input")
