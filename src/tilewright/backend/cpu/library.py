"""Machine code that models share: kernels, and the register tiles that they call.

Each is an object file of its own, kept in the cache directory under a name that depends on all that
its bytes depend on: what is compiled, the level, LLVM and the source of this package. Most kernels
of a model are those of others, and register tiles are the same in all. Start with
:func:`compile_units`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from tilewright.backend.cpu.link import link
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.register_tile import TileShape
from tilewright.backend.cpu.tile_functions import TileModule, tile_module
from tilewright.backend.cpu.workers import compile_objects
from tilewright.runtime.program import CodeImage
from tilewright.support.cache import cache_directory, read_cached, write_cached

_PACKAGE = Path(__file__).parents[2]
_SOURCES = ("backend/cpu", "cost", "ir", "shape")  # folders of it that decide what code is made


@dataclass(frozen=True)
class Unit:
    """Functions compiled by themselves: ``write`` fills a module as ``key`` says and nothing else.

    Functions of all units of an image have different names.
    """

    key: str
    write: Callable[[TileModule], None]


@dataclass(frozen=True)
class _Compiled:
    """The object of a unit, and the names of the tiles that it calls."""

    code: bytes
    tiles: tuple[str, ...]


def compile_units(units: Sequence[Unit], level: Level) -> CodeImage:
    """The code of ``units`` for ``level``, with the tiles that they call."""
    paths = [_path("kernel", level, unit.key) for unit in units]
    known = {path: found for path in paths if (found := _kept(path)) is not None}
    tiles = _kept_tiles(level, [name for found in known.values() for name in found.tiles])
    # Without one of its tiles a kernel is written again, as only that tells the tile's shape.
    known = {path: found for path, found in known.items() if tiles.keys() >= {*found.tiles}}
    modules: dict[Path, TileModule] = {}
    missing: list[TileShape] = []

    def written() -> Iterator[str]:
        """The modules to compile: kernels, then the tiles that they call."""
        # Those that say most first: they take the longest to compile.
        for path, unit in sorted(zip(paths, units, strict=True), key=lambda u: -len(u[1].key)):
            if path not in known and path not in modules:
                modules[path] = TileModule("kernels")
                unit.write(modules[path])
                yield str(modules[path])
        shapes = {n: shape for module in modules.values() for n, shape in module.tiles.items()}
        tiles.update(_kept_tiles(level, [name for name in shapes if name not in tiles]))
        missing.extend(shape for name, shape in shapes.items() if name not in tiles)
        yield from (str(tile_module(level, shape)) for shape in missing)

    made = compile_objects(written(), level)
    for (path, module), code in zip(modules.items(), made, strict=False):
        known[path] = _Compiled(code, tuple(module.tiles))
        write_cached(path, " ".join(module.tiles).encode() + b"\0" + code)
    for shape, code in zip(missing, made[len(modules) :], strict=True):
        tiles[shape.name] = code
        write_cached(_tile_path(level, shape.name), code)
    called = sorted({name for path in paths for name in known[path].tiles})
    objects, library = [known[path].code for path in paths], [tiles[name] for name in called]
    return link(objects, level.name, level.features, library)


def compile_module(module: TileModule, level: Level) -> CodeImage:
    """The code of one module, with the tiles that it calls; nothing of it is kept."""
    texts = [str(module), *(str(tile_module(level, t)) for t in module.tiles.values())]
    made, *tiles = compile_objects(texts, level)
    return link([made], level.name, level.features, tiles)


def _kept(path: Path) -> _Compiled | None:
    kept = read_cached(path)
    if kept is None:
        return None
    names, _, code = kept.partition(b"\0")
    return _Compiled(code, tuple(names.decode().split()))


def _kept_tiles(level: Level, names: Iterable[str]) -> dict[str, bytes]:
    kept = {name: read_cached(_tile_path(level, name)) for name in dict.fromkeys(names)}
    return {name: code for name, code in kept.items() if code is not None}


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
