"""Values on a tile: a tensor of two axes, of which every element is one of the kernel's.

Along an axis on which a value does not depend it has one element, so that combining values
broadcasts them. Every load and store is masked where the tile hangs over the end of an axis. Start
with :class:`Tile`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.backend.gpu.functions import applied, identity, literal
from tilewright.backend.gpu.indices import ONE_ELEMENT, Indices
from tilewright.backend.gpu.kernel import TYPES
from tilewright.backend.gpu.writer import Term, Writer
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import COMBINE
from tilewright.ir.tile import (
    Apply,
    Convert,
    Guarded,
    IndexValue,
    Literal,
    Load,
    Local,
    Store,
    Value,
)

BOTH = frozenset((0, 1))


@dataclass
class Tile:
    """Writes what is computed on one tile.

    ``blocks`` are the extents of its axes; ``inside`` says where each is not past its end, if it
    has more than one element. ``names`` are positions in it, ``locals`` what is known by name.
    """

    writer: Writer
    blocks: tuple[str, str]
    inside: Mapping[int, str]
    names: Mapping[str, Term]
    locals: dict[str, Term] = field(default_factory=dict[str, Term])
    _guards: tuple[Term, ...] = ()
    _known: dict[Value, Term] = field(default_factory=dict[Value, Term])

    def value(self, value: Value) -> Term:
        """A scalar or tensor of the value."""
        found = self._known.get(value)
        if found is None:
            found = self._known[value] = self._value(value)
        return found

    def full(self, value: Value, fill: float | int) -> str:
        """A tensor of the whole tile, ``fill`` past the ends of its axes."""
        term = self.value(value)
        number = literal(fill, value.dtype)
        mask = " & ".join(self.inside[axis] for axis in sorted(self.inside))
        return self.writer.assign(f"tl.where({mask}, {term.text}, {number})")

    def operand(self, value: Value) -> str:
        """A tensor of the whole tile for a product: what is past the ends is 0."""
        if isinstance(value, Load) and self._indices.integer(value.offset).axes == BOTH:
            return self.value(value).text
        return self.full(value, 0)

    def store(self, store: Store, axes: frozenset[int]) -> None:
        """Write one element for each along some axes of the tile."""
        value = self.value(store.value).text
        place, mask = self._place(store.buffer.name, self._indices.integer(store.offset), axes)
        self.writer.line(f"tl.store({place}, {value}{mask and f', mask={mask}'})")

    def reduced(self, kind: str, value: str, dtype: DType) -> Term:
        """What every row of a tensor is reduced to."""
        match kind, dtype.is_float:
            case "sum", _:
                text = f"tl.sum({value}, axis=1, keep_dims=True)"
                if dtype.is_integer:  # of narrow ones the sum is wider
                    text = f"{text}.to({TYPES[dtype][0]})"
            case "maximum" | "minimum", True:
                name = self.writer.helper("greatest" if kind == "maximum" else "least")
                text = f"{name}({value})"
            case "maximum" | "minimum", False:
                text = f"tl.{kind[:3]}({value}, axis=1, keep_dims=True)"
            case _:
                raise self.writer.unsupported(f"rows are reduced to a {kind}")
        return Term(self.writer.assign(text), frozenset((0,)))

    def folded(self, kind: str, one: str, other: str, dtype: DType) -> str:
        """Two tensors combined as a reduction does."""
        return self._function(COMBINE[kind], [one, other], dtype)

    def start(self, kind: str, dtype: DType) -> str:
        """A tensor of the whole tile of what a reduction begins with."""
        number = literal(identity(kind, dtype), DType.FLOAT32)
        number = number if dtype.is_float else str(identity(kind, dtype))
        shape = ", ".join(self.blocks)
        return self.writer.assign(f"tl.full(({shape}), {number}, {TYPES[dtype][0]})")

    # ------------------------------------------------------------ values

    @property
    def _indices(self) -> Indices:
        return Indices(self.writer, self.names, in_tile=True)

    def _value(self, value: Value) -> Term:
        match value:
            case Load():
                return self._load(value)
            case Literal(value=number, dtype=dtype):
                return Term(literal(number, dtype))
            case IndexValue(expression=expression):
                found = self._indices.integer(expression)
                if expression.is_constant:
                    return Term(literal(expression.value, DType.INT64))
                return Term(self.writer.assign(found.text), found.axes)
            case Local(name=name):
                return self.locals[name]
            case Apply():
                operands = [self.value(operand) for operand in value.operands]
                texts = [operand.text for operand in operands]
                text = self._function(value.function, texts, value.operand_type)
                return self._named(text, operands)
            case Convert(operand=operand, dtype=dtype):
                return self._converted(operand, dtype)
            case Guarded():
                return self._guarded(value)

    def _named(self, text: str, parts: Sequence[Term]) -> Term:
        axes = frozenset[int]().union(*(part.axes for part in parts))
        return Term(self.writer.assign(text), axes)

    def _function(self, function: str, operands: Sequence[str], dtype: DType) -> str:
        text = applied(function, operands, dtype)
        if text is None:
            raise self.writer.unsupported(f"there is no {function} of {dtype.value}")
        if text.startswith(f"{function}("):
            self.writer.helper(function)
        return text

    def _converted(self, operand: Value, dtype: DType) -> Term:
        found = self.value(operand)
        if isinstance(operand, Literal):
            return Term(literal(operand.value, dtype))
        if dtype is DType.BOOL:
            return self._named(f"{found.text} != 0", [found])
        return self._named(f"{found.text}.to({TYPES[dtype][0]})", [found])

    def _guarded(self, value: Guarded) -> Term:
        """Both sides, each with masks that leave out what the other one is for."""
        condition = self._indices.condition(value.predicate)
        predicate = self._named(condition.text, [condition])
        inside = self._under(predicate, value.inside)
        other = Term(f"({predicate.text} == 0)", predicate.axes)
        outside = self._under(other, value.outside)
        text = f"tl.where({predicate.text}, {inside.text}, {outside.text})"
        return self._named(text, [predicate, inside, outside])

    def _under(self, guard: Term, value: Value) -> Term:
        guards, known = self._guards, self._known
        self._guards, self._known = (*guards, guard), dict(known)
        found = self.value(value)
        self._guards, self._known = guards, known
        return found

    def _load(self, load: Load) -> Term:
        offset = self._indices.integer(load.offset)
        axes = offset.axes.union(*(guard.axes for guard in self._guards))
        place, mask = self._place(load.buffer.name, offset, axes)
        other = "0.0" if load.dtype.is_float else "0"
        text = f"tl.load({place}{mask and f', mask={mask}, other={other}'})"
        return Term(self.writer.assign(text), axes)

    def _place(self, pointer: str, offset: Term, axes: frozenset[int]) -> tuple[str, str]:
        """Pointers along some axes, and which of them are to elements that are wanted."""
        place = f"({offset.text})" if " " in offset.text else offset.text
        text = pointer if place == "0" else f"{pointer} + {place}"
        if not axes:
            text += f" + {ONE_ELEMENT}"
        elif offset.axes != axes:
            shape = (block if axis in axes else "1" for axis, block in enumerate(self.blocks))
            text += f" + tl.zeros(({', '.join(shape)}), tl.int64)"
        masks = [self.inside[axis] for axis in sorted(axes)]
        return text, " & ".join([*masks, *(guard.text for guard in self._guards)])
