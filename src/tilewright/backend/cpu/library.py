"""Machine code that models share: kernels, and the register tiles that they call.

Each is an object file of its own, kept in the cache directory under a name that depends on all that
its bytes depend on: what is compiled, the level, LLVM and the source of this package. Most kernels
of a model are those of others, and register tiles are the same in all. Start with
:func:`compile_units`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from tilewright.backend.cpu.link import link
from tilewright.backend.cpu.machine import Level, compile_object
from tilewright.backend.cpu.register_tile import TileShape
from tilewright.backend.cpu.tile_functions import TileModule, tile_module
from tilewright.runtime.program import CodeImage
from tilewright.support.cache import cache_directory, read_cached, write_cached

_PACKAGE = Path(__file__).parents[2]
_SOURCES = ("backend/cpu", "ir", "shape")  # folders of it that decide what code is made


@dataclass(frozen=True)
class Unit:
    """Functions compiled by themselves: ``write`` fills a module as ``key`` says and nothing else.

    Functions of all units of an image have different names.
    """

    key: str
    write: Callable[[TileModule], None]


def compile_units(units: Sequence[Unit], level: Level) -> CodeImage:
    """The code of ``units`` for ``level``, with the tiles that they call."""
    objects: list[bytes] = []
    tiles: dict[str, bytes] = {}
    for unit in units:
        made, called = _compiled(unit, level)
        objects.append(made)
        tiles |= called
    library = [tiles[name] for name in sorted(tiles)]
    return link(objects, level.name, level.features, library)


def compile_module(module: TileModule, level: Level) -> CodeImage:
    """The code of one module, with the tiles that it calls; only those are kept."""
    tiles = [_tile(level, module.tiles[name]) for name in sorted(module.tiles)]
    return link([compile_object(module, level)], level.name, level.features, tiles)


def _compiled(unit: Unit, level: Level) -> tuple[bytes, dict[str, bytes]]:
    """The object of a unit, and those of the tiles that it calls by their names."""
    path = _path("kernel", level, unit.key)
    kept = read_cached(path)
    if kept is not None:
        names, _, made = kept.partition(b"\0")
        called = {name: read_cached(_tile_path(level, name)) for name in names.decode().split()}
        found = {name: tile for name, tile in called.items() if tile is not None}
        if len(found) == len(called):
            return made, found
    module = TileModule("kernels")
    unit.write(module)
    made = compile_object(module, level)
    called = {name: _tile(level, shape) for name, shape in module.tiles.items()}
    write_cached(path, " ".join(called).encode() + b"\0" + made)
    return made, called


def _tile(level: Level, shape: TileShape) -> bytes:
    path = _tile_path(level, shape.name)
    made = read_cached(path)
    if made is None:
        made = compile_object(tile_module(level, shape), level)
        write_cached(path, made)
    return made


def _tile_path(level: Level, name: str) -> Path:
    return _path("tile", level, name)


def _path(kind: str, level: Level, key: str) -> Path:
    what = f"{_generator()} {level!r} {key}"
    return cache_directory() / f"{kind}-{hashlib.sha256(what.encode()).hexdigest()[:32]}.code"


@cache
def _generator() -> str:
    """What tells the writers of code apart: their source, and the versions of LLVM."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((_PACKAGE / folder).glob("*.py")):
            digest.update(path.read_bytes())
    version = ".".join(map(str, llvm.llvm_version_info))  # pyright: ignore
    return f"{digest.hexdigest()} {llvmlite.__version__} {version}"
