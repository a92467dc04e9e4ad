"""Importing a part of the command line so that Ctrl-C ends the command meanwhile.

Start with :func:`imported`.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
from types import ModuleType

from tilewright.support.collector import paused_collector

INTERRUPTED = 130  # the exit code of a command that Ctrl-C ended


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
    signal.signal(signal.SIGINT, _end)
    try:
        return importlib.import_module(name)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
