"""The text of one Triton kernel while it is written: lines, names, arguments and launch constants.

Start with :class:`Writer`.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilewright.backend.gpu.functions import HELPERS
from tilewright.backend.gpu.kernel import TileSize, TritonKernel
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.tile import Check, LetIndex, Statement, Store, TileBuffer
from tilewright.shape import Expr
from tilewright.support.errors import UnsupportedError
from tilewright.tile.values.lowering import Lowering

EACH = 32  # elements of a tile that a thread holds, one in each register
_NO_NAME = re.compile(r"\W", re.ASCII)


@dataclass(frozen=True)
class Term:
    """Text of a scalar or tensor, and along which of the two axes of its tile it differs."""

    text: str
    axes: frozenset[int] = frozenset()


@dataclass
class Writer:
    """Collects the body of a function; ``kernel`` puts the whole together."""

    lowering: Lowering
    sizes: dict[str, str] = field(default_factory=dict[str, str])
    tiles: dict[str, TileSize] = field(default_factory=dict[str, TileSize])
    tasks: list[tuple[Expr, str | None]] = field(default_factory=list[tuple[Expr, str | None]])
    _helpers: set[str] = field(default_factory=set[str])
    _lines: list[str] = field(default_factory=list[str])
    _indent: int = 1
    _count: int = 0

    def line(self, text: str) -> None:
        """One line of the body."""
        self._lines.append("    " * self._indent + text)

    @contextmanager
    def loop(self, head: str) -> Generator[None]:
        """Lines within a loop."""
        self.line(head)
        self._indent += 1
        yield
        self._indent -= 1

    def assign(self, text: str) -> str:
        """A new variable that holds what the text computes."""
        self._count += 1
        name = f"v{self._count}"
        self.line(f"{name} = {text}")
        return name

    def size(self, symbol: str) -> str:
        """The argument that holds the value of a symbol."""
        if symbol not in self.sizes:
            name = stem = f"size_{_NO_NAME.sub('_', symbol)}"
            while name in self.sizes.values():
                name = f"{stem}_{len(self.sizes)}"
            self.sizes[symbol] = name
        return self.sizes[symbol]

    def tile(self, size: TileSize) -> str:
        """The name of a launch constant."""
        self.tiles[size.name] = size
        return size.name

    def helper(self, name: str) -> str:
        """A function of the text that is called."""
        self._helpers.add(name)
        return name

    def unsupported(self, what: str) -> UnsupportedError:
        """The error of a kernel that cannot be written."""
        return UnsupportedError(
            f"No GPU code can be generated for this kernel: {what}",
            where=self.lowering.kernel.label,
            hint="Compile the model for a processor",
        )

    def stores(self, statements: Sequence[Statement]) -> list[Store]:
        """Statements that are all stores; others need loops or checks that no tile has."""
        found: list[Store] = []
        for statement in statements:
            match statement:
                case Store():
                    found.append(statement)
                case LetIndex():
                    raise self.unsupported("it reads positions from data")
                case Check():
                    raise self.unsupported("it checks what it computes")
                case _:
                    raise self.unsupported("it has loops inside of an element")
        return found

    def kernel(
        self,
        name: str,
        kernel: Kernel,
        targets: dict[Node, TileBuffer],
        held: Sequence[str],
        each: int = EACH,
    ) -> TritonKernel:
        """The whole text, with what is above the body; ``held`` and ``each`` are the kernel's."""
        reads = tuple((buffer.name, node) for node, buffer in self.lowering.buffers.items())
        writes = tuple((targets[node].name, node) for node in kernel.outputs)
        arguments = [*(n for n, _ in reads), *(n for n, _ in writes), *self.sizes.values()]
        arguments += [f"{tile}: tl.constexpr" for tile in self.tiles]
        helpers = [HELPERS[name] for name in HELPERS if name in self._helpers]
        head = ["import triton", "import triton.language as tl", *helpers, "", ""]
        head += ["@triton.jit", f"def {name}(", *(f"    {a}," for a in arguments), "):"]
        source = "\n".join([*head, *self._lines]) + "\n"
        sizes = tuple((name, symbol) for symbol, name in self.sizes.items())
        tiles = tuple(self.tiles.values())
        tasks = tuple(self.tasks)
        return TritonKernel(name, source, reads, writes, sizes, tiles, tasks, tuple(held), each)
