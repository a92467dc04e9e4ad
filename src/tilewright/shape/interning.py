"""Tables of interned objects that do not grow for ever: what nothing uses any more is forgotten.

A process may compile models without end. Start with :class:`Table`.
"""

from __future__ import annotations

from collections.abc import Hashable
from threading import RLock
from typing import Generic, TypeVar
from weakref import ref

_Key = TypeVar("_Key", bound=Hashable)
_Interned = TypeVar("_Interned")
_MOST_RECENT = 1 << 15  # results that a table keeps though nothing else may use them any more


class Table(Generic[_Key, _Interned]):
    """Interned objects by key, for as long as anything uses them.

    ``recent`` are some of them that are kept, so that what is made again and again need not be.
    Look there first, and give what is not there to :meth:`intern`; all threads get one object.
    Entries of what nothing uses any more are removed once they may be as many as the others.
    """

    def __init__(self) -> None:
        self.recent: dict[_Key, _Interned] = {}
        self._alive: dict[_Key, ref[_Interned]] = {}
        self._most = _MOST_RECENT
        self._lock = RLock()

    def intern(self, key: _Key, made: _Interned) -> _Interned:
        """The object of that key: the one that there is, or else ``made``."""
        with self._lock:
            known = self._alive.get(key)
            found = None if known is None else known()
            if found is None:
                found = made
                if len(self._alive) >= self._most:
                    self._most = max(_MOST_RECENT, 2 * len(self))
                self._alive[key] = ref(made)
        remember(self.recent, key, found)
        return found

    def __len__(self) -> int:
        """How many there are; entries of others are removed."""
        with self._lock:
            kept = [(key, known) for key, known in self._alive.items() if known() is not None]
            self._alive = dict(kept)
        return len(kept)


def remember(recent: dict[_Key, _Interned], key: _Key, found: _Interned) -> None:
    """Enter a result in a table of recent ones, which is emptied when it is full."""
    if len(recent) >= _MOST_RECENT:
        recent.clear()
    recent[key] = found
