"""Tables of interned objects that do not grow for ever: what nothing uses any more is forgotten.

A process may compile models without end. Start with :class:`Table`.
"""

from __future__ import annotations

from collections.abc import Hashable
from threading import RLock
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

_Key = TypeVar("_Key", bound=Hashable)
_Interned = TypeVar("_Interned")
_MOST_RECENT = 1 << 17  # results that a table keeps though nothing else may use them any more


class Table(Generic[_Key, _Interned]):
    """Interned objects by key, for as long as anything uses them.

    ``recent`` are some of them that are kept, so that what is made again and again need not be.
    Look there first, and give what is not there to :meth:`intern`; all threads get one object.
    """

    def __init__(self) -> None:
        self.recent: dict[_Key, _Interned] = {}
        self._alive: WeakValueDictionary[_Key, _Interned] = WeakValueDictionary()
        self._lock = RLock()

    def intern(self, key: _Key, made: _Interned) -> _Interned:
        """The object of that key: the one that there is, or else ``made``."""
        with self._lock:
            found = self._alive.get(key)
            if found is None:
                found = self._alive[key] = made
        remember(self.recent, key, found)
        return found

    def __len__(self) -> int:
        return len(self._alive)


def remember(recent: dict[_Key, _Interned], key: _Key, found: _Interned) -> None:
    """Enter a result in a table of recent ones, which is emptied when it is full."""
    if len(recent) >= _MOST_RECENT:
        recent.clear()
    recent[key] = found
