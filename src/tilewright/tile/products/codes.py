"""Products by weights of few bits: straight from their words, or unpacked block by block.

Both read the same panels, which are packed when compiling. For few rows a product takes words apart
in registers (:class:`~tilewright.ir.tile.CodeView`), so that it moves little more than the words.
For many rows a block of the weights becomes floats in cache, which register tiles read; each number
is taken apart once for every block of rows. Start with :func:`code_operand`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.access import ContractionAccess
from tilewright.ir.codes import Codes
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.primitives import Constant
from tilewright.ir.tile import (
    Apply,
    CodeView,
    Convert,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    Store,
    TileBuffer,
    Value,
)
from tilewright.shape import Expr, ceil_div, constant, product, symbol
from tilewright.tile.variants import CodePart, PackedCodes, Source


@dataclass(frozen=True)
class CodeOperand:
    """A right operand of codes, and the buffers of its parts in a kernel's program."""

    codes: Codes
    panel: int
    words: TileBuffer
    scales: TileBuffer
    zeros: TileBuffer | None
    sources: tuple[Source, ...]

    @property
    def buffers(self) -> tuple[TileBuffer, ...]:
        """All of them, in the order of the sources."""
        return (self.words, self.scales, *([] if self.zeros is None else [self.zeros]))

    @property
    def words_along(self) -> int:
        """Words of a panel along the depth."""
        return -(-self.codes.shape[1] // self.codes.per_word)

    def view(self, first: Expr) -> CodeView:
        """The operand from a column on that begins a panel."""
        codes = self.codes
        zeros = codes.zeros if isinstance(codes.zeros, int) else self.zeros
        assert zeros is not None
        return CodeView(
            self.words, first * self.words_along, constant(self.words_along),
            constant(self.panel), self.panel, bits=codes.bits, block=codes.block,
            blocks=constant(codes.blocks), tail=codes.shape[1] % codes.per_word,
            scales=self.scales, zeros=zeros, place=first * codes.blocks,
        )  # fmt: skip


def held_codes(contract: Node, access: ContractionAccess) -> Codes | None:
    """The codes of the right operand if it is all of a constant of them, rows along its columns."""
    right = access.right
    if right is None or access.batch or not isinstance(right.source.primitive, Constant):
        return None
    codes = right.source.primitive.codes
    if codes is None:
        return None
    rows, depth = codes.shape
    sizes = (product([size for _, size in axes]) for axes in (access.columns, access.summed))
    whole = tuple(sizes) == (constant(rows), constant(depth))
    along = right.depth is constant(1) or depth == 1
    apart = right.row is constant(depth) or rows == 1
    return codes if whole and right.base is constant(0) and along and apart else None


def code_operand(contract: Node, access: ContractionAccess, panel: int) -> CodeOperand | None:
    """The right operand of a Contract in panels of so many columns, if it is codes."""
    codes = held_codes(contract, access)
    if codes is None or access.right is None:
        return None
    source = access.right.source
    single = isinstance(codes.zeros, int)
    parts = [CodePart.WORDS, CodePart.SCALES, *([] if single else [CodePart.ZEROS])]
    buffers = [TileBuffer(f"c{i}", part.value) for i, part in enumerate(parts)]
    sources = tuple(PackedCodes(source, part, panel) for part in parts)
    zeros = None if single else buffers[2]
    return CodeOperand(codes, panel, buffers[0], buffers[1], zeros, sources)


# ---------------------------------------------------------------- many rows


def unpacking(operand: CodeOperand, target: TileBuffer, row: Expr) -> Loop:
    """Loops that fill ``target`` with a block of floats, ``row`` elements between its depths.

    A block begins with a panel and a word. Of the last ones all numbers are written.
    """
    codes, panel = operand.codes, operand.panel
    k0, k1, n0, n1 = (symbol(name) for name in ("_k0", "_k1", "_n0", "_n1"))
    p, w, i = (symbol(name) for name in ("_up", "_uw", "_ui"))
    word = Load(operand.words, (p * operand.words_along + w) * panel + i)
    block = w // (codes.block // codes.per_word)
    place = (p * codes.blocks + block) * panel + i
    if isinstance(codes.zeros, int):
        zero: Value = Literal(float(codes.zeros), DType.FLOAT32)
    else:
        assert operand.zeros is not None
        zero = Convert(Load(operand.zeros, place), DType.FLOAT32)
    body: list[Let | Store] = [
        Let("_word", word), Let("_scale", Load(operand.scales, place)), Let("_zero", zero)
    ]  # fmt: skip
    mask = Literal((1 << codes.bits) - 1, DType.INT32)
    for number in range(codes.per_word):
        shift = Literal(number * codes.bits, DType.INT32)
        shifted: Value = Local("_word", DType.INT32)
        if number:
            shifted = Apply("shift_right", (shifted, shift), DType.INT32)
        whole = Convert(Apply("bitwise_and", (shifted, mask), DType.INT32), DType.FLOAT32)
        centred = Apply("subtract", (whole, Local("_zero", DType.FLOAT32)), DType.FLOAT32)
        value = Apply("multiply", (centred, Local("_scale", DType.FLOAT32)), DType.FLOAT32)
        depth = w * codes.per_word + number - k0
        body.append(Store(target, depth * row + p * panel - n0 + i, value))
    columns = Loop("_ui", constant(0), constant(panel), tuple(body), independent=True)
    words = Loop("_uw", k0 // codes.per_word, ceil_div(k1, codes.per_word), (columns,))
    return Loop("_up", n0 // panel, ceil_div(n1, panel), (words,))
