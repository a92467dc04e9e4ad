"""A file that is written beside its place and takes it as a whole, or leaves no trace.

It is written with ``pwrite``, by any number of threads: a full disk is an error there, and not a
signal as with mapped memory. Imports ``support`` and numpy. Start reading at :class:`Draft`.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

from tilewright.support.errors import ArtifactError
from tilewright.support.files import place_beside


class Draft:
    """The bytes of a file to be; ``with`` removes them unless :meth:`take_place` was called.

    Whoever writes by threads joins them before the end of ``with``. All methods raise ArtifactError
    where the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with self._named():
            self._beside = place_beside(self.path)
            # By open and not by tempfile, so that it has the permissions of any other file.
            self._file = self._beside.open("x+b", buffering=0)
        # The system writes a file for one thread at a time; others would spin for their turn.
        self._turn = threading.Lock()

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._beside.unlink(missing_ok=True)

    def write(self, offset: int, data: Any) -> None:
        """Write the bytes of a buffer at ``offset``."""
        view = memoryview(data)
        with self._named(), self._turn:
            while len(view):
                count = os.pwrite(self._file.fileno(), view, offset)
                view, offset = view[count:], offset + count

    def mapped(self, offset: int, size: int) -> np.ndarray[Any, Any]:
        """These bytes, which were written, where they are; they stay when the file is replaced."""
        if not size:
            return np.empty(0, np.uint8)
        begin = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        length = offset + size - begin
        with self._named():
            mapping = mmap.mmap(self._file.fileno(), length, access=mmap.ACCESS_READ, offset=begin)
        return np.frombuffer(cast("Any", mapping), np.uint8)[offset - begin :]

    def take_place(self, size: int) -> None:
        """Become the file, of ``size`` bytes, for every process that opens it from now on.

        It is not waited for the disk: what a loss of power leaves unwritten, the digests tell.
        """
        with self._named():
            self._file.truncate(size)
            os.replace(self._beside, self.path)

    @contextmanager
    def _named(self) -> Generator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise ArtifactError(
                f"The file cannot be written: {why}", where=str(self.path), hint=self._hint(error)
            ) from error

    def _hint(self, error: OSError | ValueError) -> str:
        """What to do about it."""
        code = getattr(error, "errno", None)
        if code == errno.ENAMETOOLONG:  # nobody can tell what such a path is
            return "Choose a shorter name"
        if self.path.is_dir():
            return f"Name a file in it, for example {self.path / 'model.tw'}"
        match code:
            case errno.ENOENT:
                return f"Make the folder first: mkdir -p {self.path.parent}"
            case errno.ENOSPC | errno.EDQUOT:
                return "Make room on that disk, or write to another one"
            case errno.EACCES | errno.EPERM | errno.EROFS:
                return "Write to a folder in which you may make files"
            case errno.EFBIG:
                return "Raise the limit on the size of files (ulimit -f)"
            case _:
                return "Write to another folder"
