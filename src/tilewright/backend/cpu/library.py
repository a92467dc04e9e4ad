"""Machine code that models share: kernels, and the functions that they call.

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
from tilewright.backend.cpu.machine import Level, ModuleText
from tilewright.backend.cpu.shared import KernelModule, SharedFunction, shared_module
from tilewright.backend.cpu.workers import compile_objects
from tilewright.runtime.program import CodeImage
from tilewright.support.cache import cache_directory, read_cached, write_cached

_PACKAGE = Path(__file__).parents[2]
_SOURCES = ("backend/cpu", "ir", "shape", "target")  # folders of it that decide what code is made


@dataclass(frozen=True)
class Unit:
    """Functions compiled by themselves: ``write`` fills a module as ``key`` says and nothing else.

    Functions of all units of an image have different names.
    """

    key: str
    write: Callable[[KernelModule], None]


@dataclass(frozen=True)
class _Compiled:
    """The object of a unit or of a shared function, and the names of the shared ones it calls."""

    code: bytes
    calls: tuple[str, ...]


def compile_units(units: Sequence[Unit], level: Level) -> CodeImage:
    """The code of ``units`` for ``level``, with the shared functions that they call."""
    return _Compilation(level).image(units)


def compile_module(module: KernelModule, level: Level) -> CodeImage:
    """The code of one module, with the shared functions that it calls; nothing of it is kept."""
    modules = {"": module, **_called_modules(module.compiled)}
    texts = _Texts()
    code = compile_objects([texts.of(part) for part in modules.values()], level)
    return link(code[:1], level.name, level.features, code[1:])


def _called_modules(shared: Iterable[SharedFunction]) -> dict[str, KernelModule]:
    """The modules of these functions, and of those that they call, by name."""
    modules: dict[str, KernelModule] = {}
    waiting = list(shared)
    while waiting:
        one = waiting.pop(0)
        if one.name not in modules:
            modules[one.name] = shared_module(one)
            waiting += modules[one.name].compiled
    return modules


class _Texts:
    """Modules as LLVM's language, with what becomes a part of them; each is written once."""

    def __init__(self) -> None:
        self._inlined: dict[str, str] = {}

    def of(self, module: KernelModule) -> ModuleText:
        parts: list[str] = []
        for shared in module.inlined:
            if shared.name not in self._inlined:
                own = shared_module(shared)
                self._inlined[shared.name] = str(own)
                own.take_apart()
            parts.append(self._inlined[shared.name])
        return ModuleText(str(module), tuple(parts), module.straight)


class _Compilation:
    """The objects of one image, by path: what is kept, and what is compiled."""

    def __init__(self, level: Level) -> None:
        self._level = level
        self._found: dict[Path, _Compiled] = {}
        self._calls: dict[Path, tuple[str, ...]] = {}  # of what is compiled, in order

    def image(self, units: Sequence[Unit]) -> CodeImage:
        level = self._level
        paths = [_path("kernel", level, unit.key) for unit in units]
        made = compile_objects(self._written(paths, units), level)
        for (path, calls), code in zip(self._calls.items(), made, strict=True):
            self._found[path] = _Compiled(code, calls)
            write_cached(path, " ".join(calls).encode() + b"\0" + code)
        called = sorted(self._called(paths))
        library = [self._found[self._shared_path(name)].code for name in called]
        objects = [self._found[path].code for path in paths]
        return link(objects, level.name, level.features, library)

    def _written(self, paths: Sequence[Path], units: Sequence[Unit]) -> Iterator[ModuleText]:
        """The modules to compile: kernels, then what they call."""
        texts, called = _Texts(), list[SharedFunction]()
        # Those that say most first: they take the longest to compile.
        for path, unit in sorted(zip(paths, units, strict=True), key=lambda u: -len(u[1].key)):
            if path not in self._calls and not self._is_kept(path):
                module = KernelModule("kernels")
                unit.write(module)
                called += module.compiled
                yield self._text(path, module, texts)
        while called:
            shared = called.pop(0)
            path = self._shared_path(shared.name)
            if path not in self._calls and not self._is_kept(path):
                module = shared_module(shared)
                called += module.compiled
                yield self._text(path, module, texts)

    def _text(self, path: Path, module: KernelModule, texts: _Texts) -> ModuleText:
        """A module as text; nothing else is left of it than what it calls."""
        self._calls[path] = tuple(shared.name for shared in module.compiled)
        text = texts.of(module)
        module.take_apart()
        return text

    def _is_kept(self, path: Path) -> bool:
        """Whether the object is kept, and those of all that it calls.

        Without one of them it is written again, as only that tells what the missing one does.
        """
        if path not in self._found:
            kept = read_cached(path)
            if kept is None:
                return False
            names, _, code = kept.partition(b"\0")
            self._found[path] = _Compiled(code, tuple(names.decode().split()))
        return all(self._is_kept(self._shared_path(name)) for name in self._found[path].calls)

    def _called(self, paths: Sequence[Path]) -> set[str]:
        """The names of all shared functions that run when these objects do."""
        names: set[str] = set()
        waiting = list(paths)
        while waiting:
            for name in self._found[waiting.pop()].calls:
                if name not in names:
                    names.add(name)
                    waiting.append(self._shared_path(name))
        return names

    def _shared_path(self, name: str) -> Path:
        return _path("shared", self._level, name)


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
