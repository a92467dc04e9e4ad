"""Functions of other libraries that steps of programs call in the place of compiled code.

An artifact has only their names; they must be provided in the process that loads it. Start with
:func:`provide`.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable

from tilewright.support.errors import ArtifactError, InputError

PREFIX = "library:"  # of the functions of steps
FAILED = "The library kernel failed; the log says why"  # what a status of 1 means

# Sizes, addresses of operands and then of results, and the tasks: from, and up to which.
LibraryFunction = Callable[[tuple[int, ...], tuple[int, ...], int, int], None]

_LOG = logging.getLogger(__name__)
_WORDS = ctypes.POINTER(ctypes.c_int64)
_CONVENTION = ctypes.CFUNCTYPE(
    None, _WORDS, _WORDS, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, _WORDS
)
_addresses: dict[str, int] = {}
_callbacks: dict[int, object] = {}  # by address: they live as long as the process


def provide(name: str, function: LibraryFunction | int, sizes: int, tensors: int) -> None:
    """Make a function known by ``name``, in the place of one that had it.

    ``function`` is the address of a C function that follows the calling convention of compiled
    kernels (``src/native/kernel.hpp``), or a Python function that is given ``sizes`` parameters
    and the addresses of ``tensors`` operands and results, and may be called by any thread. Models
    that are loaded already keep what they have. Raises InputError for an address that is none.
    """
    if isinstance(function, int):
        if function <= 0:
            raise InputError(f"The library kernel {name} has no function at {function}")
        _addresses[name] = function
        return
    callback = _CONVENTION(_called(name, function, sizes, tensors))
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    _callbacks[address] = callback
    _addresses[name] = address


def withdraw(name: str) -> None:
    """Forget a function; models that are loaded already keep it."""
    _addresses.pop(name, None)


def address_of(function: str) -> int:
    """Where the function of a step is; 0 for one of the program's own code.

    Raises ArtifactError where it was not provided in this process.
    """
    if not function.startswith(PREFIX):
        return 0
    name = function.removeprefix(PREFIX)
    if name not in _addresses:
        raise ArtifactError(
            f"The artifact calls the library kernel {name!r}, which this process does not have",
            hint="Register it with tilewright.tile.library.register before loading the artifact",
        )
    return _addresses[name]


def _called(name: str, function: LibraryFunction, sizes: int, tensors: int) -> Callable[..., None]:
    def call(
        parameters: ctypes._Pointer[ctypes.c_int64],  # pyright: ignore[reportPrivateUsage]
        buffers: ctypes._Pointer[ctypes.c_int64],  # pyright: ignore[reportPrivateUsage]
        begin: int,
        end: int,
        _: int,
        status: ctypes._Pointer[ctypes.c_int64],  # pyright: ignore[reportPrivateUsage]
    ) -> None:
        try:
            function(tuple(parameters[:sizes]), tuple(buffers[:tensors]), begin, end)
        except BaseException:  # there is no caller that it could be raised in
            _LOG.exception("The library kernel %s failed", name)
            status[0] = ctypes.c_int64(1)

    return call


__all__ = ["FAILED", "PREFIX", "LibraryFunction", "address_of", "provide", "withdraw"]
