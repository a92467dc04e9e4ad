"""How a command ends that is told to: by Ctrl-C, also while a part of it is imported, or SIGTERM.

Start with :func:`imported` and :func:`ended_tidily`.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType

from tilewright.support.collector import paused_collector

INTERRUPTED = 130  # the exit code of a command that Ctrl-C ended
TERMINATED = 128 + signal.SIGTERM


def _end(number: int, frame: object) -> None:
    os._exit(INTERRUPTED)


@paused_collector()
def imported(name: str) -> ModuleType:
    """The module; Ctrl-C while it is imported ends the process at once.

    There is nothing to tidy up yet, and an exception that Python raises inside of its callbacks for
    imports would be printed and lost.
    """
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        return importlib.import_module(name)
    terminate = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGINT, _end)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        return importlib.import_module(name)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, terminate)


def _leave(number: int, frame: object) -> None:
    sys.exit(TERMINATED)


@contextmanager
def ended_tidily() -> Generator[None]:
    """SIGTERM, by which containers and batch systems end a command, raises SystemExit meanwhile.

    So what is written beside its place is removed, as after Ctrl-C.
    """
    usual = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
