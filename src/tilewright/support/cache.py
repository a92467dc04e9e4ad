"""The cache directory: what can be made again, kept so that it need not be.

The folder is ``$TILEWRIGHT_CACHE_DIR``, or ``tilewright`` in the user's cache folder. Files are
replaced whole, so readers never see half of one. Start with :func:`read_cached`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

KINDS = ("profile-*.json", "kernel-*.code", "tile-*.code")  # names of what is kept

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
    except OSError:
        return None
    digest, data = content[:_DIGEST], content[_DIGEST:]
    return data if hashlib.sha256(data).digest() == digest else None


def write_cached(path: Path, data: bytes) -> None:
    """Keep what can be made again; nothing where the folder cannot be written."""
    with contextlib.suppress(OSError):
        replace_file(path, hashlib.sha256(data).digest() + data)


def cached_files() -> tuple[Path, ...]:
    """The files that are kept, by kind and name."""
    folder = cache_directory()
    return tuple(path for kind in KINDS for path in sorted(folder.glob(kind)))


def clear() -> int:
    """Remove what is kept and the folder, if nothing else is in it; the number of files removed."""
    files = cached_files()
    for path in files:
        path.unlink(missing_ok=True)
    folder = cache_directory()
    if files and not any(folder.iterdir()):
        folder.rmdir()
    return len(files)
