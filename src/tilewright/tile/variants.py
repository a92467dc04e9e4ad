"""Variants to compute one kernel: the steps of each, what they read and write, and what they cost.

A kernel may be lowered to several variants that are best at different shapes. All are compiled; the
runtime takes the cheapest by the model at every shape. Read :class:`Variant`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol

import numpy as np

from tilewright.ir.codes import Codes
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant
from tilewright.ir.tensor_type import TensorType
from tilewright.ir.tile import TileProgram
from tilewright.shape import Expr, constant, product

THREADS = "_threads"  # stands for the number of threads in block sizes and costs


class Accuracy(Enum):
    """What a variant may do to the error of floating-point sums."""

    STANDARD = "standard"  # up to a few times that of summing in order; see ``winograd``
    STRICT = "strict"  # every sum is one of the products that define it, in some order


class Transform(Protocol):
    """What a constant becomes before it is packed; equal transforms make the same of it.

    Only what is packed in the end is computed: most kernels that are priced are in no program.
    """

    def sizes(self, given: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of what becomes of a constant with the shape ``given``."""
        ...

    def applied(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """What becomes of the contents of a constant."""
        ...


@dataclass(frozen=True)
class PackedConstant:
    """A constant operand arranged in panels of ``panel`` rows, k-major, padded with zeros.

    ``node``, or what ``transform`` makes of it, has the axes (batch…, rows…, depth…) after
    ``order`` is applied to them; ``lead`` and ``depth`` count the batch and depth axes. A ``lead``
    of -g says that the first axis holds g groups of rows. ``word`` elements that follow each other
    along the depth stay together.
    """

    node: Node
    order: tuple[int, ...]
    lead: int
    depth: int
    panel: int
    word: int = 1
    transform: Transform | None = None

    @property
    def type(self) -> TensorType:
        """The type of what is packed."""
        if self.transform is None:
            return self.node.type
        sizes = self.transform.sizes(tuple(size.value for size in self.node.shape))
        return TensorType(self.node.dtype, tuple(map(constant, sizes)))


class CodePart(Enum):
    """What of a constant of codes an array holds; the value is the type of its elements."""

    WORDS = DType.INT32  # whole numbers, as many in a word as it holds, the first in the low bits
    SCALES = DType.FLOAT32
    ZEROS = DType.UINT8


@dataclass(frozen=True)
class PackedCodes:
    """A part of a constant of codes in panels of ``panel`` rows: [panels, along the depth, panel].

    Along the depth there are words, or one element for each block. Zeros fill the last panel.
    """

    node: Node
    part: CodePart
    panel: int

    @property
    def type(self) -> TensorType:
        """The type of the constant that the codes stand for."""
        return self.node.type

    @property
    def codes(self) -> Codes:
        """The codes of the constant."""
        primitive = self.node.primitive
        assert isinstance(primitive, Constant) and primitive.codes is not None
        return primitive.codes

    @property
    def shape(self) -> tuple[int, int, int]:
        """The sizes of the array."""
        rows, depth = self.codes.shape
        words = -(-depth // self.codes.per_word)
        along = words if self.part is CodePart.WORDS else self.codes.blocks
        return -(-rows // self.panel), along, self.panel


@dataclass(frozen=True, eq=False)
class Workspace:
    """Memory that one step of a variant fills for a later one; ``elements`` of ``dtype``."""

    name: str
    dtype: DType
    elements: Expr


Packed = PackedConstant | PackedCodes
Source = Node | Packed | Workspace


@dataclass(frozen=True)
class ExternalFunction:
    """A function of another library, by its name in programs, and the numbers that it is given."""

    name: str
    parameters: tuple[Expr, ...]


@dataclass(frozen=True)
class LoweredStep:
    """A tile program and what its buffers are: what it reads, then what it writes.

    With ``external`` that function does what the program, which has no statements, is to do.
    """

    program: TileProgram
    reads: tuple[Source, ...]
    writes: tuple[Node | Workspace, ...]
    external: ExternalFunction | None = None


def workspace(node: Node) -> Workspace:
    """Memory for a node that only steps of one variant read."""
    return Workspace(repr(node), node.dtype, product(node.shape))


def between(step: LoweredStep, places: Mapping[Node, Node | Workspace]) -> LoweredStep:
    """The step with workspaces in the place of what only other steps of the variant read.

    A node in the place of another one is a result that is the same by other means.
    """
    return replace(
        step,
        reads=tuple(places.get(r, r) if isinstance(r, Node) else r for r in step.reads),
        writes=tuple(places.get(w, w) if isinstance(w, Node) else w for w in step.writes),
    )


@dataclass(frozen=True)
class Variant:
    """``steps`` in order, and their modelled time in picoseconds with all threads."""

    name: str
    steps: tuple[LoweredStep, ...]
    cost: Expr


# Gives the variants of a kernel that has a role within another one: they are made, or those of one
# that was alike in the same role.
Made = Callable[[], tuple[Variant, ...]]
Once = Callable[[Kernel, str, Made], tuple[Variant, ...]]


def made_anew(kernel: Kernel, role: str, make: Made) -> tuple[Variant, ...]:
    """The variants of a kernel, of which nothing is kept."""
    return make()
