"""What contractions and convolutions are lowered with: tile, blocking, named axes, types.

Start with :class:`Frame`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Contract, Convolve
from tilewright.ir.views import declare_index
from tilewright.shape import Expr, product
from tilewright.tile.values.lowering import Lowering

Axes = Sequence[tuple[str, Expr]]


@dataclass(frozen=True)
class RegisterTile:
    """Rows and columns of float32 accumulators that one step of the innermost loop updates.

    There are fewer rows where the elements of narrow operands have to be taken apart. ``sums`` is
    how many vectors of them one loop of dot products has: what LLVM holds without spilling.
    ``others`` are further sizes, of which prices tell where they are faster. ``matrix`` are the
    rows and columns of sums that a matrix unit holds, for products of narrow operands in rows.
    ``room`` are the bytes that all may have together which a task around the tile meets more than
    once: the second cache has them. A kernel that reads and writes more than ``near`` bytes writes
    its results past the caches.
    """

    rows: int
    columns: int
    narrow_rows: int
    room: int
    near: int = 1 << 62
    sums: int = 12
    matrix: tuple[int, int] | None = None
    others: tuple[tuple[int, int], ...] = ()

    def for_type(self, dtype: DType) -> RegisterTile:
        """The tile with as many vectors of another type."""
        others = tuple((rows, columns * 4 // dtype.bytes) for rows, columns in self.others)
        return replace(self, columns=self.columns * 4 // dtype.bytes, others=others)

    def for_product(self, seed: Node) -> RegisterTile:
        """The tile for the sums of a Contract or Convolve."""
        narrow = narrow_type(seed) is not None
        tile = self.for_type(seed.dtype)
        if narrow and self.matrix is not None and isinstance(seed.primitive, Contract):
            rows, columns = self.matrix
            return replace(tile, rows=rows, columns=columns, others=())
        return replace(tile, rows=self.narrow_rows, others=()) if narrow else tile

    def sizes(self) -> tuple[RegisterTile, ...]:
        """This tile and then each of the others, none of which has others."""
        usual = replace(self, others=())
        others = (replace(usual, rows=rows, columns=columns) for rows, columns in self.others)
        return (usual, *others)


@dataclass(frozen=True)
class Blocking:
    """The most rows, columns and depth of a task's block; None: what suits most shapes.

    ``packed`` says that the right operand is packed into cache even if it can be read in place,
    ``whole`` that a block has all columns, however many.
    """

    rows: int | None = None
    columns: int | None = None
    depth: int | None = None
    packed: bool = False
    whole: bool = False


@dataclass
class Frame:
    """What the lowering of contractions and convolutions shares.

    ``joined`` says that columns lie side by side in results in runs alone: those of a block leave
    it together.
    """

    kernel: Kernel
    lowering: Lowering
    tile: RegisterTile
    batch: tuple[tuple[str, Expr], ...]
    rows: tuple[tuple[str, Expr], ...]
    columns: tuple[tuple[str, Expr], ...]
    depth: Expr
    blocking: Blocking = Blocking()
    mirrored: bool = False
    joined: bool = False

    @property
    def contract(self) -> Node:
        """The product that is computed: the seed, or with its sides exchanged."""
        return mirror(self.kernel.seed) if self.mirrored else self.kernel.seed

    @property
    def m(self) -> Expr:
        return product([size for _, size in self.rows])

    @property
    def n(self) -> Expr:
        return product([size for _, size in self.columns])


def narrow_type(seed: Node) -> DType | None:
    """The type of the left operand of a Contract or Convolve if it is narrower than the sums."""
    primitive = seed.primitive
    narrow = isinstance(primitive, Contract | Convolve) and primitive.sums is not None
    return seed.inputs[0].dtype if narrow else None


def elements_per_word(seed: Node) -> int:
    """How many elements of an operand lie in what a register tile takes for one."""
    narrow = narrow_type(seed)
    return 1 if narrow is None else seed.dtype.bytes // narrow.bytes


def declare(lowering: Lowering, axes: Axes) -> list[Expr]:
    """Names of axes as index variables of the outermost level."""
    for name, _ in axes:
        lowering.depth[name] = 0
    return [declare_index(lowering.scope, name, size) for name, size in axes]


def mirror(contract: Node) -> Node:
    """The same product with its operands exchanged: columns come before rows in its result."""
    primitive = contract.primitive
    assert isinstance(primitive, Contract)
    left, right = contract.inputs
    batch = tuple((j, i) for i, j in primitive.batch)
    summed = tuple((j, i) for i, j in primitive.summed)
    return node(replace(primitive, batch=batch, summed=summed), right, left)
