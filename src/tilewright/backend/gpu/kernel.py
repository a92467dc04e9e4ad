"""A kernel for a GPU: its Triton source, its arguments, and how it is launched.

Start with :class:`TritonKernel`.
"""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.shape import Expr, symbol

Sizes = Mapping[str, int]

MULTIPLE = 16  # of bytes in a pointer, and of elements in a size, of which Triton makes use
# Matrix units of Hopper are fed by four warps together; sixteen share the registers as 128 each.
LEAST_WARPS, MOST_WARPS = 4, 16

# How Triton writes element types, and pointers to them in signatures.
TYPES = {
    DType.BOOL: ("tl.int1", "*i1"),
    DType.INT8: ("tl.int8", "*i8"),
    DType.INT16: ("tl.int16", "*i16"),
    DType.INT32: ("tl.int32", "*i32"),
    DType.INT64: ("tl.int64", "*i64"),
    DType.UINT8: ("tl.uint8", "*u8"),
    DType.UINT16: ("tl.uint16", "*u16"),
    DType.UINT32: ("tl.uint32", "*u32"),
    DType.UINT64: ("tl.uint64", "*u64"),
    DType.FLOAT16: ("tl.float16", "*fp16"),
    DType.BFLOAT16: ("tl.bfloat16", "*bf16"),
    DType.FLOAT32: ("tl.float32", "*fp32"),
    DType.FLOAT64: ("tl.float64", "*fp64"),
}


@dataclass(frozen=True)
class TileSize:
    """A launch constant: how many elements of an axis one tile has, always a power of two.

    It is the least that holds the ``extent`` of the axis, between ``least`` and ``most``. Where the
    text needs the ``whole`` axis in one tile, there is no launch at sizes for which that is more.
    Together with another constant, that of ``beside``, it makes at most as many elements, unless
    that leaves fewer than ``least``.
    """

    name: str
    extent: Expr
    most: int
    least: int = 1
    whole: bool = False
    beside: tuple[str, int] | None = None

    def at(self, sizes: Sizes, others: Mapping[str, int]) -> int | None:
        """The constant at some sizes, or None if the axis has to be in one tile and is too long."""
        wanted = max(self.extent.evaluate(sizes), self.least)
        size = 1 << (wanted - 1).bit_length()
        if self.whole and size > self.most:
            return None
        most = self.most
        if self.beside is not None:
            other, area = self.beside
            most = min(most, max(area // others[other], self.least))
        return min(size, most)


@dataclass(frozen=True)
class Launch:
    """A one-dimensional grid of ``tasks`` programs, and what their code is compiled for.

    That is the ``constants`` of the text, the arguments of which it may know that they are
    ``multiples`` of ``MULTIPLE``, and how many ``warps`` of 32 threads run a program.
    """

    tasks: int
    constants: dict[str, int]
    multiples: tuple[str, ...]
    warps: int


@dataclass(frozen=True)
class TritonKernel:
    """Triton source of a function ``name``, and what it is called with.

    The arguments are pointers to ``reads``, then to ``writes``, all of them contiguous and at
    multiples of ``MULTIPLE`` bytes, then the values of ``sizes`` as 64-bit integers, then the
    constants of ``tiles``. ``sizes`` and pointers are named as in the text; a size comes with its
    symbol. There is one program for every tile of the axes in ``tasks``, each with the constant
    that it is cut by, or None if by 1. A program holds as many elements as the product of the
    constants in ``held``, ``each`` of them a thread.
    """

    name: str
    source: str
    reads: tuple[tuple[str, Node], ...]
    writes: tuple[tuple[str, Node], ...]
    sizes: tuple[tuple[str, str], ...]
    tiles: tuple[TileSize, ...]
    tasks: tuple[tuple[Expr, str | None], ...]
    held: tuple[str, ...]
    each: int

    @property
    def pitches(self) -> dict[str, Expr]:
        """How far the rows that a pointer leads to lie apart, and the sizes which that is.

        Where it is a multiple of ``MULTIPLE``, every row begins at a multiple of what one
        instruction loads, and threads read several elements at once. Where it is not, they must
        not: neighbouring threads would read from different lines.
        """
        last = {name: n.shape[-1] for name, n in (*self.reads, *self.writes) if n.rank}
        sizes = {name: symbol(text) for name, text in self.sizes}
        apart = set(last.values())
        return {**last, **{name: size for name, size in sizes.items() if size in apart}}

    @property
    def signature(self) -> dict[str, str]:
        """The types of the arguments that are no constants, as Triton's compiler takes them."""
        pointers = {name: TYPES[node.dtype][1] for name, node in (*self.reads, *self.writes)}
        return {**pointers, **{name: "i64" for name, _ in self.sizes}}

    def launch(self, sizes: Sizes, units: int) -> Launch | None:
        """How to launch it at some sizes, or None if a row does not fit the tile that it needs.

        Tiles are halved while there are fewer programs than multiprocessors (``units``).
        """
        constants: dict[str, int] = {}
        for tile in self.tiles:
            size = tile.at(sizes, constants)
            if size is None:
                return None
            constants[tile.name] = size
        least = {tile.name: tile.least for tile in self.tiles if not tile.whole}
        while 0 < (tasks := self._tasks(sizes, constants)) < units:
            cut = [name for _, name in self.tasks if name in least]
            large = [name for name in cut if constants[name] > least[name]]
            if not large:
                break
            constants[max(large, key=lambda name: constants[name])] //= 2
        multiples = tuple(
            name for name, size in self.pitches.items() if size.evaluate(sizes) % MULTIPLE == 0
        )
        threads = prod(constants[name] for name in self.held) // self.each
        warps = min(max(threads // 32, LEAST_WARPS), MOST_WARPS)
        return Launch(tasks, constants, multiples, warps)

    def _tasks(self, sizes: Sizes, constants: Mapping[str, int]) -> int:
        return prod(
            -(-extent.evaluate(sizes) // (1 if tile is None else constants[tile]))
            for extent, tile in self.tasks
        )


def load_function(name: str, source: str) -> Any:
    """The function of that name in Triton source, to be launched, interpreted or compiled.

    Triton reads the text of a function again, so it is kept where tracebacks look for it, too.
    """
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    filename = f"<tilewright {name} {digest}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace: dict[str, Any] = {"__name__": f"tilewright_{name}_{digest}"}
    exec(compile(source, filename, "exec"), namespace)
    return namespace[name]
