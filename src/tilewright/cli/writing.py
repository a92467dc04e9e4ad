"""Where a command may write: nothing that was given to it, and nothing of another kind.

Start with :func:`writable`, and write to what :func:`replacing` gives.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from tilewright.cli.usage import UsageError
from tilewright.support.files import FileKind, place_beside, what_is

ARTIFACTS, ARRAYS, IMAGES, TEXTS = ("artifact",), ("npy",), ("image",), ("text", "json")


def writable(path: Path, kinds: Iterable[str], inputs: Iterable[Path | None] = ()) -> Path:
    """The same path, which names no file yet or an older result of one of these ``kinds``.

    Raises UsageError for a folder, for one of the ``inputs``, however it is reached, and for a file
    that no command of this kind wrote: a model, its weights, a device.
    """
    where = str(path)
    found = what_is(path)
    if found.name == "missing":
        return _new(path)
    if path.is_dir():
        raise UsageError(
            "This is a folder, not a file",
            where=where,
            hint=f"Name a file in it, for example {path / 'NAME'}",
        )
    if any(given is not None and given.exists() and path.samefile(given) for given in inputs):
        raise UsageError(
            "This is an input of the command, and would be overwritten",
            where=where,
            hint="Give the output another name",
        )
    if found.name not in (*kinds, "empty"):
        raise _other_kind(found, where)
    return path


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A file beside ``path`` that takes its place once it is written, or leaves no trace.

    Raises OSError that names ``path``, whatever could not be written.
    """
    beside = place_beside(path)
    try:
        yield beside
        os.replace(beside, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        beside.unlink(missing_ok=True)


def plot_file(path: Path | None, option: str, inputs: Iterable[Path | None] = ()) -> Path | None:
    """Where a plot may be written. Raises UsageError."""
    if path is not None and writable(path, IMAGES, inputs).suffix != ".png":
        hint = f"Write {option} {path.with_suffix('.png')}"
        raise UsageError("Plots are PNG files", where=str(path), hint=hint)
    return path


def _new(path: Path) -> Path:
    if not path.parent.is_dir():
        parent = str(path.parent)
        raise UsageError(
            "The folder does not exist", where=parent, hint=f"Make it with mkdir -p {parent}"
        )
    return path


def _other_kind(found: FileKind, where: str) -> UsageError:
    return UsageError(
        f"This is {found.phrase}, and would be overwritten",
        where=where,
        hint="Give the output another name, or remove the file first",
    )
