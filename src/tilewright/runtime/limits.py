"""What limits the calls of all models of the process.

The environment may set it: TILEWRIGHT_MEMORY_LIMIT (bytes, or such as ``2G``) and
TILEWRIGHT_IDLE_SECONDS. It is read when the first model is made. Imports ``support`` and the native
extension. Start reading at :func:`set_memory_limit`.
"""

from __future__ import annotations

import functools
import math
import os

from tilewright.runtime import _native
from tilewright.support.arguments import LARGEST, as_integer, byte_count, show
from tilewright.support.errors import InputError, ResourceError

LIMIT_VARIABLE = "TILEWRIGHT_MEMORY_LIMIT"
IDLE_VARIABLE = "TILEWRIGHT_IDLE_SECONDS"


def set_memory_limit(limit: int | str | None) -> None:
    """Limit the bytes that all models of this process hold for calls, in total.

    Counted are intermediate tensors, outputs until they are freed, and memory that is kept for
    later calls, which is freed first where the limit is near; weights and code are not. A call that
    needs more raises ResourceError. ``limit`` is a number of bytes or such as "2G"; None: no limit.
    Memory that no call takes for 10 seconds goes back to the system; TILEWRIGHT_IDLE_SECONDS
    changes that.
    """
    apply_environment()
    _native.set_memory_limit(0 if limit is None else _bytes(limit))


@functools.cache
def apply_environment() -> None:
    """Take over what the environment says, once. Raises ResourceError where it makes no sense."""
    limit, idle = os.environ.get(LIMIT_VARIABLE, ""), os.environ.get(IDLE_VARIABLE, "")
    try:
        size = _bytes(limit) if limit.strip() else 0
    except InputError as error:
        hint = f"Set {LIMIT_VARIABLE} to a number of bytes, such as 2G, or unset it"
        where = f"environment variable {LIMIT_VARIABLE}"
        raise ResourceError(error.message, where=where, hint=hint) from error
    try:
        seconds = float(idle) if idle.strip() else None
    except ValueError:
        seconds = math.nan
    if seconds is not None and not 0 <= seconds <= 1e9:
        raise ResourceError(
            f"{IDLE_VARIABLE} is {idle!r}, which is no number of seconds",
            where=f"environment variable {IDLE_VARIABLE}",
            hint=f"Set {IDLE_VARIABLE} to a number of seconds from 0 on, or unset it",
        )
    if size:
        _native.set_memory_limit(size)
    if seconds is not None:
        _native.set_idle_seconds(seconds)


def _bytes(value: object) -> int:
    count = byte_count(value) if isinstance(value, str) else as_integer(value)
    if count is None or not 1 <= count <= LARGEST:
        what = "a number of bytes, such as 2147483648 or '2G'"
        raise InputError(
            f"The memory limit is {show(value)}, but must be {what}", hint=f"Give {what}, or None"
        )
    return count
