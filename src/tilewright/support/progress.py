"""Progress for people: a bar with the time left on a terminal, plain lines elsewhere.

:class:`Progress` writes to the console it is given, which for the command line is stderr, so that
results on stdout stay clean. Imports rich only.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from tilewright.support.text import format_seconds


class Steps:
    """A task of known length; call :meth:`at` before each step."""

    def __init__(self, console: Console, title: str, total: int, bars: Bars | None) -> None:
        self._console = console
        self._title = title
        self._total = total
        self._bars = bars
        self._task = None if bars is None else bars.add_task(title, total=total)

    def at(self, done: int, what: str) -> None:
        """``done`` steps are finished; ``what`` comes next."""
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=done, description=f"{self._title} {what}")
        else:
            self._console.print(f"{self._title} {what} ({done + 1} of {self._total})", style="dim")


class Progress:
    """Reports what takes long on one console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def activity(self, title: str) -> Generator[None]:
        """Something of unknown length: a spinner with its seconds, or one line when it is done."""
        started = time.perf_counter()
        if self._console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            with Bars(*columns, console=self._console, transient=True) as bars:
                bars.add_task(title, total=None)
                yield
        else:
            yield
            seconds = format_seconds(time.perf_counter() - started)
            self._console.print(f"{title}: {seconds}", style="dim")

    @contextmanager
    def steps(self, title: str, total: int) -> Generator[Steps]:
        """Something of ``total`` steps: a bar with the time left, or one line for each step."""
        if not self._console.is_terminal:
            yield Steps(self._console, title, total, None)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Bars(*columns, console=self._console, transient=True) as bars:
            yield Steps(self._console, title, total, bars)
