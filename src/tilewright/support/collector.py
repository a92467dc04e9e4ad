"""The cyclic garbage collector, paused while something makes many objects that stay.

Its cost grows with the number of objects that are alive, so it takes a third of the time of
compiling a deep model, and finds nothing meanwhile. Start with :func:`paused_collector`.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

_lock = threading.Lock()
_pausing = 0
_was_enabled = False


@contextmanager
def paused_collector() -> Generator[None]:
    """Without collections meanwhile; the last of several threads to leave brings them back."""
    global _pausing, _was_enabled
    with _lock:
        if _pausing == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pausing += 1
    try:
        yield
    finally:
        with _lock:
            _pausing -= 1
            if _pausing == 0 and _was_enabled:
                gc.enable()
