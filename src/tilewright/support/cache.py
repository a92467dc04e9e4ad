"""The cache directory: what can be made again, kept so that it need not be.

The folder is ``$TILEWRIGHT_CACHE_DIR``, or ``tilewright`` in the user's cache folder. Files are
replaced whole, so readers never see half of one. Compiled code takes at most
``$TILEWRIGHT_CACHE_BYTES`` (1 GiB unless set; 0 keeps none): what was not used for longest goes
first. Start with :func:`read_cached`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
from pathlib import Path

from tilewright.support.arguments import byte_count
from tilewright.support.errors import InputError

_CODE = ("kernel-*.code", "shared-*.code")
KINDS = ("profile-*.json", "times-*.json", *_CODE)  # names of what is kept

LIMIT_VARIABLE = "TILEWRIGHT_CACHE_BYTES"
_USUAL_LIMIT = 1 << 30
_SHARE_BETWEEN = 16  # the folder is looked through again when this part of the limit was written
_SHARE_KEPT = 0.9  # of the limit, so that room is not made for every file anew

_DIGEST = hashlib.sha256().digest_size


def cache_directory() -> Path:
    """The folder of what is kept; it need not exist."""
    chosen = os.environ.get("TILEWRIGHT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    # A relative path in XDG_CACHE_HOME is to be ignored, its specification says.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        return base / "tilewright"
    try:
        return Path.home() / ".cache" / "tilewright"
    except RuntimeError:  # a user without a home, as in some containers
        return Path(tempfile.gettempdir()) / f"tilewright-{os.geteuid()}"


def cache_limit() -> int:
    """Bytes that compiled code may take. Raises InputError where the variable says no size."""
    text = os.environ.get(LIMIT_VARIABLE, "").strip()
    if not text:
        return _USUAL_LIMIT
    limit = byte_count(text)
    if limit is None:
        raise InputError(
            f"{text!r} is not a size",
            where=f"environment variable {LIMIT_VARIABLE}",
            hint="Write a number of bytes, or one with a unit: 500M, 2G",
        )
    return limit


def replace_file(path: Path, data: bytes) -> None:
    """Write beside the file, then take its place; its folder is made. May raise OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_cached(path: Path) -> bytes | None:
    """What :func:`write_cached` kept; None if it is not there, damaged, or another user's."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            content = file.read()
            with contextlib.suppress(OSError):
                os.utime(file.fileno())  # it was used now
    except OSError:
        return None
    digest, data = content[:_DIGEST], content[_DIGEST:]
    return data if hashlib.sha256(data).digest() == digest else None


def write_cached(path: Path, data: bytes) -> None:
    """Keep what can be made again; nothing where the folder cannot be written or has no room."""
    limit = cache_limit()
    if len(data) + _DIGEST > limit:
        return
    with contextlib.suppress(OSError):
        replace_file(path, hashlib.sha256(data).digest() + data)
        _BOUND.written(len(data) + _DIGEST, limit)


class _Bound:
    """Keeps compiled code within its limit, without looking through the folder for every file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unseen: int | None = None  # bytes since the folder was last looked through

    def written(self, size: int, limit: int) -> None:
        """So many bytes more are there. May raise OSError."""
        with self._lock:
            self._unseen = None if self._unseen is None else self._unseen + size
            if self._unseen is not None and self._unseen * _SHARE_BETWEEN < limit:
                return
            self._unseen = 0
            remove_oldest(limit)


_BOUND = _Bound()


def remove_oldest(limit: int) -> int:
    """Remove the code not used for longest while all takes more than ``limit``; files removed."""
    folder = cache_directory()
    found: list[tuple[int, int, Path]] = []
    for path in (path for kind in _CODE for path in folder.glob(kind)):
        with contextlib.suppress(FileNotFoundError):  # another process may remove it as well
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_size, path))
    total, removed = sum(size for _, size, _ in found), 0
    if total <= limit:
        return 0
    for _, size, path in sorted(found):
        if total <= _SHARE_KEPT * limit:
            break
        path.unlink(missing_ok=True)
        total, removed = total - size, removed + 1
    return removed


def cached_files() -> tuple[Path, ...]:
    """The files that are kept, by kind and name."""
    folder = cache_directory()
    return tuple(path for kind in KINDS for path in sorted(folder.glob(kind)))


def clear() -> tuple[int, dict[Path, str]]:
    """Remove what is kept and the folder, if nothing else is in it.

    The number of files removed, and why others remain.
    """
    removed, remaining = 0, dict[Path, str]()
    for path in cached_files():
        try:
            path.unlink(missing_ok=True)
            removed += 1
        except OSError as error:
            remaining[path] = error.strerror or type(error).__name__
    folder = cache_directory()
    if removed and not remaining:
        with contextlib.suppress(OSError):  # another process may write there meanwhile
            folder.rmdir()
    return removed, remaining
