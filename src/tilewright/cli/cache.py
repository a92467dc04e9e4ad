"""``tilewright cache``: what is kept between runs and where, how large, and how to be rid of it.

Start with :func:`cache`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Annotated

import typer

from tilewright.cli.options import JsonFlag, QuietFlag, VerboseFlag
from tilewright.cli.output import Output, table
from tilewright.support.cache import cache_directory, cache_limit, cached_files, clear
from tilewright.support.errors import TilewrightError
from tilewright.support.text import format_bytes, format_count

_LISTED = 10  # names of files in a message


def cache(
    remove: Annotated[bool, typer.Option("--clear", help="Remove what is kept.")] = False,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = 0,
) -> None:
    """Show the cache directory and what it holds: measurements and compiled code.

    Compiled code takes at most TILEWRIGHT_CACHE_BYTES (an environment variable, 1G unless set);
    what was not used for longest is removed. TILEWRIGHT_CACHE_DIR says where the directory is.

    \b
    Example: tilewright cache --clear
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    removed = _clear() if remove else 0
    files = _sizes()
    total = sum(size for _, size in files)
    directory = str(cache_directory())
    limit = cache_limit()
    output.document(
        {
            "directory": directory,
            "bytes": total,
            "limit": limit,
            "files": [{"name": name, "bytes": size} for name, size in files],
            "removed": removed,
        }
    )
    if remove:
        output.show(f"Removed {format_count(removed, 'file')} from {directory}")
        return
    size = f"{format_bytes(total)}; compiled code takes at most {format_bytes(limit)}"
    output.show(f"{directory}: {format_count(len(files), 'file')}, {size}")
    if files:
        output.show(table("file", ">size", rows=_rows(files)))


def _clear() -> int:
    """Remove what is kept; the number of files. Raises TilewrightError where some remain."""
    removed, remaining = clear()
    if not remaining:
        return removed
    names: dict[str, list[str]] = {}
    for path, why in remaining.items():
        names.setdefault(why, []).append(path.name)
    listed = [f"{', '.join(_shortened(found))} ({why})" for why, found in names.items()]
    raise TilewrightError(
        f"Removed {format_count(removed, 'file')}, but {len(remaining)} cannot be removed: "
        f"{'; '.join(listed)}",
        where=str(cache_directory()),
        hint="Remove them as their owner, or choose another folder by TILEWRIGHT_CACHE_DIR",
    )


def _shortened(names: Sequence[str]) -> list[str]:
    """The first names, and how many others there are."""
    others = len(names) - _LISTED
    return [*names[:_LISTED], *([f"{others} more"] if others > 0 else [])]


def _sizes() -> list[tuple[str, int]]:
    """The names and sizes of what is kept, as far as other processes leave it there."""
    sizes: list[tuple[str, int]] = []
    for path in cached_files():
        with contextlib.suppress(OSError):
            sizes.append((path.name, path.stat().st_size))
    return sizes


def _rows(files: Sequence[tuple[str, int]]) -> list[tuple[str, str]]:
    """A row for each measurement, and one for all compiled code."""
    code = [size for name, size in files if name.endswith(".code")]
    rows = [(name, format_bytes(size)) for name, size in files if not name.endswith(".code")]
    if code:
        rows.append((format_count(len(code), "compiled object"), format_bytes(sum(code))))
    return rows
