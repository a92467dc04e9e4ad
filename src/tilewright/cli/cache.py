"""``tilewright cache``: what is kept between runs and where, how large, and how to be rid of it.

Start with :func:`cache`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tilewright.cli.options import JsonFlag
from tilewright.cli.output import Output, table
from tilewright.support.cache import cache_directory, cached_files, clear
from tilewright.support.text import format_bytes, format_count


def cache(
    remove: Annotated[bool, typer.Option("--clear", help="Remove what is kept.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show the cache directory and what it holds: measurements and the code of register tiles.

    Example: [bold]tilewright cache --clear[/]
    """
    output = Output(as_json=as_json)
    files = [(path.name, path.stat().st_size) for path in cached_files()]
    removed = clear() if remove else 0
    total = 0 if remove else sum(size for _, size in files)
    directory = str(cache_directory())
    kept = [] if remove else [{"name": name, "bytes": size} for name, size in files]
    output.document({"directory": directory, "bytes": total, "files": kept, "removed": removed})
    if remove:
        output.show(f"Removed {format_count(removed, 'file')} from {directory}")
        return
    output.show(f"{directory}: {format_count(len(files), 'file')}, {format_bytes(total)}")
    if files:
        output.show(table("file", ">size", rows=_rows(files)))


def _rows(files: Sequence[tuple[str, int]]) -> list[tuple[str, str]]:
    """A row for each file, but one for all register tiles."""
    tiles = [size for name, size in files if name.startswith("tile-")]
    rows = [(name, format_bytes(size)) for name, size in files if not name.startswith("tile-")]
    if tiles:
        rows.append((format_count(len(tiles), "register tile"), format_bytes(sum(tiles))))
    return rows
