"""Where results go: rich tables or JSON on stdout, progress and the log on stderr.

Imports support and rich. Start with :class:`Output`.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TextIO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tilewright.support.errors import UnsupportedError
from tilewright.support.progress import Progress

_LOG_WIDTH = 160
LOGGER = "tilewright"


class Output:
    """One command's results; with ``as_json`` only :meth:`document` prints.

    With ``quiet`` nothing is shown but what was asked for as JSON; ``verbose`` shows the log of the
    library, 1 for its stages, 2 for details, in the place of progress.
    """

    def __init__(self, *, as_json: bool, quiet: bool = False, verbose: int = 0) -> None:
        self.as_json = as_json
        self._is_quiet = quiet
        self._console = Console()
        if not self._console.is_terminal:
            self._console.width = _LOG_WIDTH
        self.progress = Progress(Console(stderr=True, quiet=quiet or verbose > 0))
        _show_log(verbose)

    def show(self, *parts: RenderableType) -> None:
        """Print for people."""
        if not self.as_json and not self._is_quiet:
            for part in parts:
                is_text = isinstance(part, str | Text)
                self._console.print(part, soft_wrap=is_text, markup=False, highlight=False)

    def note(self, text: str) -> None:
        """Tell people something on stderr that is no result."""
        if not self._is_quiet:
            print(text, file=sys.stderr)

    def document(self, content: Mapping[str, object]) -> None:
        """Print for programs."""
        if self.as_json:
            print(json.dumps(content, indent=2, allow_nan=False))


class _Handler(logging.StreamHandler[TextIO]):
    """The one handler of the command line, so that another command takes its place."""


def _show_log(verbose: int) -> None:
    logger = logging.getLogger(LOGGER)
    for handler in [h for h in logger.handlers if isinstance(h, _Handler)]:
        logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    if verbose:
        handler = _Handler(sys.stderr)
        handler.setFormatter(logging.Formatter(f"{LOGGER}: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO if verbose == 1 else logging.DEBUG)


def table(*columns: str, rows: Sequence[Sequence[str | Text]], title: str | None = None) -> Table:
    """A plain table; a column whose name starts with ">" is aligned to the right."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    made.pad_edge, made.box = False, None
    for name in columns:
        made.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left")
    for row in rows:
        # Names and types hold brackets, which rich would take for markup.
        made.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return made


def load_plots() -> ModuleType:
    """The drawings, before anything is measured: matplotlib may be missing (UnsupportedError)."""
    try:
        return importlib.import_module("tilewright.bench.plots")
    except ImportError as error:
        raise UnsupportedError(
            f"Plots cannot be drawn: {error}.",
            hint='Install it with "pip install matplotlib", or leave the plot out',
        ) from error
