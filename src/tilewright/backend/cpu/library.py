"""Machine code that models share: kernels, and the functions that they call.

Each is an object file of its own, kept in the cache directory under a name that depends on all that
its bytes depend on: what is compiled, the level, LLVM and the source of this package. Most kernels
of a model are those of others, and register tiles are the same in all. Start with
:class:`Compilation`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from tilewright.backend.cpu.link import link
from tilewright.backend.cpu.machine import Level, ModuleText
from tilewright.backend.cpu.shared import KernelModule, SharedFunction, shared_module
from tilewright.backend.cpu.workers import Objects, compile_objects
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


class Compilation:
    """The objects of one image, by path: what is kept, and what is compiled.

    A context, at whose end nothing is compiled any more.
    """

    def __init__(self, level: Level) -> None:
        self._level = level
        self._objects = Objects(level)
        self._texts = _Texts()
        self._found: dict[Path, _Compiled] = {}
        self._calls: dict[Path, tuple[str, ...]] = {}  # of what is compiled, in order
        self._waiting: list[SharedFunction] = []  # that are called by what is compiled

    def __enter__(self) -> Compilation:
        return self

    def __exit__(self, *_: object) -> None:
        self._objects.__exit__()

    def begin(self, unit: Unit) -> Path:
        """Compile a unit that will be in the image, while others are made."""
        path = _path("kernel", self._level, unit.key)
        if not self._is_there(path):
            module = KernelModule("kernels")
            unit.write(module)
            self._add(path, module)
        return path

    def image(self, units: Sequence[Unit]) -> CodeImage:
        """The code of ``units``, with the shared functions that they call."""
        level = self._level
        # Those that say most first: they take the longest to compile.
        begun = {unit.key: self.begin(unit) for unit in sorted(units, key=lambda u: -len(u.key))}
        while self._waiting:
            shared = self._waiting.pop(0)
            path = self._shared_path(shared.name)
            if not self._is_there(path):
                self._add(path, shared_module(shared))
        for (path, calls), code in zip(self._calls.items(), self._objects.finish(), strict=True):
            self._found[path] = _Compiled(code, calls)
            write_cached(path, " ".join(calls).encode() + b"\0" + code)
        paths = [begun[unit.key] for unit in units]
        called = sorted(self._called(paths))
        library = [self._found[self._shared_path(name)].code for name in called]
        objects = [self._found[path].code for path in paths]
        return link(objects, level.name, level.features, library)

    def _add(self, path: Path, module: KernelModule) -> None:
        """Compile a module, of which nothing else is left than what it calls."""
        self._waiting += module.compiled
        self._calls[path] = tuple(shared.name for shared in module.compiled)
        self._objects.add(self._texts.of(module))
        module.take_apart()

    def _is_there(self, path: Path) -> bool:
        """Whether nothing is to be done for an object."""
        return path in self._calls or self._is_kept(path)

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
