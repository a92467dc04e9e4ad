"""The program that a kernel becomes while it is written: bodies of loops that are open.

Start with :class:`ProgramWriter`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.tile import Let, Literal, Local, Statement, Store, TileBuffer, Value
from tilewright.ir.tile_walk import value_symbols
from tilewright.ir.views import declare_index
from tilewright.shape import Expr, Scope, less, logical_and
from tilewright.tile.values.block import Block


class ProgramWriter:
    """Names, buffers, messages and the bodies that are open, the innermost last.

    ``scope`` knows all variables, ``depth`` in which of the open bodies a name has its value and
    ``sizes`` below what a variable stays. Buffers are in the order in which they were asked for.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope.copy()
        self.buffers: dict[Node, TileBuffer] = {}
        self.scratch: list[TileBuffer] = []
        self.checks: list[str] = []
        self.blocks: list[Block] = [Block()]
        self.depth: dict[str, int] = {}
        self.sizes: dict[str, Expr] = {}
        self._symbols: dict[Value, frozenset[str]] = {}
        self._names = 0

    def continue_program(self, other: ProgramWriter) -> None:
        """Write into the program of another one: names, buffers and messages go on."""
        self.buffers, self.scratch, self.checks = other.buffers, other.scratch, other.checks
        self._names = other._names

    def name(self, stem: str) -> str:
        """A name not used before in this kernel."""
        self._names += 1
        return f"_{stem}{self._names}"

    def buffer(self, node: Node) -> TileBuffer:
        """The memory of a node that is read from there or written to it."""
        if node not in self.buffers:
            self.buffers[node] = TileBuffer(f"b{len(self.buffers)}", node.dtype)
        return self.buffers[node]

    def scratch_buffer(self, dtype: DType, elements: Expr, fixed: bool = False) -> TileBuffer:
        """New thread-private memory; ``fixed`` if of one layout, whatever the sizes of a call."""
        made = TileBuffer(f"s{len(self.scratch)}", dtype, True, elements, fixed)
        self.scratch.append(made)
        return made

    def check(self, message: str) -> int:
        """The index of a message in this kernel's list."""
        if message not in self.checks:
            self.checks.append(message)
        return self.checks.index(message)

    def variable(self, extent: Expr, stem: str = "i", count: Expr | None = None) -> Expr:
        """A loop variable in [0, extent), known to the scope; its body runs ``count`` times."""
        name = self.name(stem)
        self.depth[name] = len(self.blocks) - 1
        self.sizes[name] = extent
        self.blocks[-1].extents.append(extent if count is None else count)
        return declare_index(self.scope, name, extent)

    def open(self) -> None:
        """Begin the body of a loop."""
        self.blocks.append(Block())

    def opened(self, name: str, size: Expr | None = None) -> Expr:
        """Open the body of a loop over ``name``: below ``size``, or just not negative."""
        self.open()
        self.depth[name] = len(self.blocks) - 1
        scope = self.scope
        return scope.declare(name, 0) if size is None else declare_index(scope, name, size)

    def close(self) -> tuple[Statement, ...]:
        """End the innermost open body and return its statements."""
        return tuple(self.blocks.pop().statements)

    def emit(self, statement: Statement) -> None:
        """Append to the innermost open body."""
        self.blocks[-1].statements.append(statement)

    def opened_statements(self) -> list[Statement]:
        """What all open bodies hold, the outermost first: all, where every loop is of the grid."""
        return [statement for block in self.blocks for statement in block.statements]

    def level_of(self, symbols: Iterable[str]) -> int:
        """The place of the outermost open body in which all of these symbols have values."""
        deepest = max((self.depth.get(s, 0) for s in symbols), default=0)
        return min(deepest, len(self.blocks) - 1)

    def runs_within(self, level: int) -> Expr:
        """Whether the loops inside of an open body run at all, where the body does."""
        inner = [size for block in self.blocks[level + 1 :] for size in block.extents]
        return self.scope.resolve(logical_and(*(less(0, size) for size in inner)))

    def let(self, value: Value) -> Value:
        """Bind a value computed once per iteration of the current loop."""
        if isinstance(value, Literal | Local):
            return value
        name = self.name("v")
        self.emit(Let(name, value))
        self.depth[name] = len(self.blocks) - 1
        return Local(name, value.dtype)

    def store(self, buffer: TileBuffer, offset: Expr, value: Value) -> None:
        """Write an element in the current loop."""
        self.emit(Store(buffer, self.scope.resolve(offset), value))

    def symbols(self, value: Value) -> frozenset[str]:
        """Names of loop variables and locals that a value depends on."""
        return value_symbols(value, self._symbols)
