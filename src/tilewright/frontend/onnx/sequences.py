"""Operators on sequences whose elements are known when compiling: no sequence is ever made of them.

A sequence of known elements is a call of SequenceConstruct (SequenceEmpty without any), whose
operands they are, or one of SplitToSequence, if they are parts of a tensor. What takes one apart
again, or changes it at a position that is known, gets the elements, so that nothing is left of the
calls but where something else needs the sequence: those run on the reference evaluator, and so do
operators at positions outside of the sequence. Bodies of loops make the sequences that they read
themselves. Start with :func:`by_elements`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import helper

from tilewright.frontend.onnx.opaque import OpaqueCall, inner_graphs, names_in, opaque_nodes, unused
from tilewright.frontend.onnx.report import Fallback
from tilewright.frontend.onnx.sequence_parts import SPLIT, Parts, known_size, parts_of
from tilewright.frontend.onnx.state import State, Use
from tilewright.ir.graph import Node, topological
from tilewright.ir.primitives import Opaque
from tilewright.ir.symbolic import integer_contents
from tilewright.ops.build import Builder, dimension
from tilewright.ops.record import RuleContext
from tilewright.ops.sizes import size_of
from tilewright.shape import Expr, Truth, constant, total
from tilewright.support.errors import UnsupportedError

MOST_ELEMENTS = 1024  # that an operator is taken apart into

Elements = tuple[Node, ...]


def by_elements(state: State, use: Use) -> list[Node] | None:
    """The output of an operator on sequences, if all elements are known; else None."""
    rule = _RULES.get(use.item.op_type) if use.domain == "" else None
    if rule is None:
        return None
    known = state.checkpoint()
    try:
        made = rule(_Rule(state, use))
    except UnsupportedError:
        made = None
    if made is None:
        state.restore(known)
    return made


def left_over(state: State, outputs: Sequence[Node]) -> list[Fallback]:
    """The calls that make sequences which something still needs."""
    found = [state.sequences[n] for n in topological(outputs) if n in state.sequences]
    for fallback, is_counted in found:
        if not is_counted:
            continue
        count = state.compiled.pop(fallback.operator, 0)
        if count > 1:
            state.compiled[fallback.operator] = count - 1
    return [fallback for fallback, _ in found]


def elements_of(sequence: Node | None) -> Elements | None:
    """The elements that a sequence was made of one by one; None for any other value."""
    primitive = None if sequence is None else sequence.primitive
    is_known = isinstance(primitive, Opaque) and primitive.operator in _MAKERS
    return sequence.inputs if sequence is not None and is_known else None


def element_type(state: State, sequence: Node | None) -> int:
    """That of a sequence, as ONNX numbers it."""
    found = None if sequence is None else state.objects.get(sequence)
    kind = onnx.TypeProto() if found is None else found
    return kind.sequence_type.elem_type.tensor_type.elem_type


Captured = tuple[tuple[str, Node], ...]


def made_inside(
    proto: onnx.NodeProto, captured: Captured, state: State, use: Use
) -> tuple[onnx.NodeProto, Captured]:
    """An operator with bodies that make the known sequences themselves which they read.

    They are given tensors in the place of sequences, and can be compiled. Elements that are all
    alike become one tensor, so that a body reads any of them.
    """
    taken = names_in(inner_graphs(proto)) | {name for name, _ in captured}
    given: list[tuple[str, Node]] = []
    for name, value in captured:
        sequence = _as_parts(value, state, use)
        if elements_of(sequence) is None and parts_of(sequence) is None:
            given.append((name, value))
            continue
        assert isinstance(sequence.primitive, Opaque)
        (maker,) = onnx.load_model_from_string(sequence.primitive.payload).graph.node
        names = [unused(f"{name}_{i}", taken) for i in range(len(sequence.inputs))]
        maker.input[:] = names
        maker.output[:] = [name]
        given += zip(names, sequence.inputs, strict=True)
        for graph in inner_graphs(proto):
            if name in names_in([graph]):
                graph.node.insert(0, maker)
    return proto, tuple(given)


def sequence_of(state: State, use: Use, elements: Elements) -> Node | None:
    """The sequence of these elements; None where they cannot be one."""
    made = _Rule(state, use).sequence(elements, 0) if elements else None
    return None if made is None else made[0]


def parts_of_stack(
    state: State, use: Use, stack: Node, known: frozenset[str] | None = None
) -> Node | None:
    """The sequence whose elements are the entries of a first axis.

    None if they have other sizes than those ``known``: every element may have its own then.
    """
    names = {name for size in stack.shape[1:] for name in size.free_symbols}
    if not stack.rank or (known is not None and not names <= known):
        return None
    made = _Rule(state, use).parts((stack,), axis=0, keepdims=0)
    return None if made is None else made[0]


def _as_parts(value: Node, state: State, use: Use) -> Node:
    """A sequence of several elements of one shape as parts of a tensor; others as they are."""
    elements = elements_of(value)
    rule = _Rule(state, use)
    if not elements or len(elements) < 2 or not rule.are_alike(elements):
        return value
    return parts_of_stack(state, use, rule.stacked(elements)) or value


class _Rule:
    """One operator: its operands and the ways to make its output."""

    def __init__(self, state: State, use: Use) -> None:
        self.state = state
        self.use = use
        operands = tuple(o for o in use.operands if o is not None)
        self.context = RuleContext(
            use.item.op_type, operands, use.attributes, 1, use.opset, use.where, state.facts
        )
        self.builder = Builder(self.context)

    def elements(self) -> Elements | None:
        """The elements of the sequence that the first operand is."""
        return elements_of(self.use.operands[0]) if self.use.operands else None

    def first_parts(self) -> Parts | None:
        """What the sequence is a part of that the first operand is."""
        return parts_of(self.use.operands[0]) if self.use.operands else None

    def are_alike(self, elements: Elements) -> bool:
        """Whether all of them have one shape and element type."""
        first, scope = elements[0], self.state.scope
        return all(
            e.dtype is first.dtype
            and e.dtype.is_native
            and e.rank == first.rank
            and all(
                scope.is_equal(a, b) is Truth.YES for a, b in zip(e.shape, first.shape, strict=True)
            )
            for e in elements
        )

    def stacked(self, elements: Elements) -> Node:
        """Elements that are alike, along a first axis."""
        return self.builder.concat([self.builder.unsqueeze(e, [0]) for e in elements], 0)

    def numbers(self, operand: int) -> list[int] | None:
        """The integers of an operand, where they are known."""
        given = self.use.operands[operand]
        contents = None if given is None else integer_contents(given)
        if contents is None:
            return None
        known = [self.state.scope.resolve(e) for e in contents.reshape(-1)]
        return [e.value for e in known] if all(e.is_constant for e in known) else None

    def position(self, operand: int) -> int | None:
        """The integer of an operand, the last place without one; None where it is not known."""
        if len(self.use.operands) <= operand:
            return -1
        numbers = self.numbers(operand)
        return numbers[0] if numbers else None

    def sequence(self, elements: Elements, element_type: int) -> list[Node] | None:
        """A sequence of these elements, of an element type of ONNX."""
        if any(not e.dtype.is_native or e.dtype is not elements[0].dtype for e in elements):
            return None
        names = [f"element_{i}" for i in range(len(elements))]
        if elements:
            proto = helper.make_node("SequenceConstruct", names, ["sequence"])
        else:
            proto = helper.make_node("SequenceEmpty", [], ["sequence"], dtype=element_type)
        return self._made(proto, elements)

    def parts(self, operands: Elements, *, axis: int, keepdims: int) -> list[Node] | None:
        """The sequence of the parts of a tensor."""
        names = ["source", "split"][: len(operands)]
        proto = helper.make_node(SPLIT, names, ["sequence"], axis=axis, keepdims=keepdims)
        return self._made(proto, operands)

    def _made(self, proto: onnx.NodeProto, operands: Elements) -> list[Node] | None:
        """What makes a sequence, which is left only where something needs it."""
        state, use = self.state, self.use
        opsets = {k: v for k, v in use.frame.opsets.items() if k != "ai.onnx"}
        call = OpaqueCall(proto, use.where, operands, (), opsets, (), (None,), (None,), (True,), 0)
        (made,) = opaque_nodes(call, state.scope, state.objects)
        if made is None:
            return None
        state.labels.setdefault(made, use.where)
        reason = "its sequence is needed as a whole"
        fallback = Fallback(use.name, use.where, reason)
        state.sequences.setdefault(made, (fallback, use.frame.counted))
        return [made]


def _construct(rule: _Rule) -> list[Node] | None:
    elements = rule.context.inputs
    if not elements or None in elements:
        return None
    return rule.sequence(tuple(e for e in elements if e is not None), 0)


def _empty(rule: _Rule) -> list[Node] | None:
    return rule.sequence((), rule.context.integer("dtype", onnx.TensorProto.FLOAT))


def _identity(rule: _Rule) -> list[Node] | None:
    first = rule.use.operands[0] if rule.use.operands else None
    is_known = rule.elements() is not None or rule.first_parts() is not None
    return [first] if first is not None and is_known else None


def _length(rule: _Rule) -> list[Node] | None:
    elements, parts = rule.elements(), rule.first_parts()
    if parts is not None:
        return [parts.count(rule.builder)]
    return None if elements is None else [dimension(len(elements))]


def _at(rule: _Rule) -> list[Node] | None:
    elements, parts, place = rule.elements(), rule.first_parts(), rule.position(1)
    where = rule.use.operands[1] if len(rule.use.operands) > 1 else None
    if parts is not None and where is not None:
        return [parts.at(rule.builder, where)]
    if elements and place is None and where is not None and rule.are_alike(elements):
        return [Parts(rule.stacked(elements), 0, None, None, False).at(rule.builder, where)]
    if elements is None or place is None or not -len(elements) <= place < len(elements):
        return None
    return [elements[place]]


def _insert(rule: _Rule) -> list[Node] | None:
    elements, given = rule.elements(), rule.use.operands[1]
    if elements is None or given is None:
        return None
    place, count = len(elements), len(elements)
    if len(rule.use.operands) > 2:
        (number, *_) = rule.numbers(2) or (count + 1,)
        if not -count <= number <= count:
            return None
        place = number + count if number < 0 else number
    return rule.sequence((*elements[:place], given, *elements[place:]), 0)


def _erase(rule: _Rule) -> list[Node] | None:
    elements, place = rule.elements(), rule.position(1)
    if elements is None or place is None or not -len(elements) <= place < len(elements):
        return None
    left = [*elements]
    del left[place]
    return rule.sequence(tuple(left), element_type(rule.state, rule.use.operands[0]))


def _concat(rule: _Rule) -> list[Node] | None:
    elements, parts, b = rule.elements(), rule.first_parts(), rule.builder
    is_new = rule.context.integer("new_axis", 0)
    if parts is not None:
        whole = parts.together(b, rule.context.integer("axis"), bool(is_new))
        return None if whole is None else [whole]
    if not elements:
        return None
    axis = b.axis(rule.context.integer("axis"), elements[0].rank + is_new)
    return [b.concat([b.unsqueeze(e, [axis]) if is_new else e for e in elements], axis)]


def _split(rule: _Rule) -> list[Node] | None:
    x, b = rule.use.operands[0], rule.builder
    if x is None or not x.dtype.is_native:
        return None
    axis = b.axis(rule.context.integer("axis", 0), x.rank)
    lengths = _lengths(rule, rule.state.scope.resolve(x.shape[axis]))
    if lengths is None or not 0 < len(lengths) <= MOST_ELEMENTS:
        return _unknown_parts(rule, x, axis)
    whole = total(lengths)
    rule.context.require_equal(x.shape[axis], whole, "the parts are not the whole")
    is_single = len(rule.use.operands) < 2 and not rule.context.integer("keepdims", 1)
    parts: list[Node] = []
    start = constant(0)
    for length in lengths:
        part = b.slice_axis(x, axis, start, length)
        sizes = [s for a, s in enumerate(part.shape) if a != axis or not is_single]
        parts.append(b.reshape(part, sizes))
        start += length
    return rule.sequence(tuple(parts), 0)


def _unknown_parts(rule: _Rule, x: Node, axis: int) -> list[Node] | None:
    """Parts whose number a call tells."""
    split = rule.use.operands[1] if len(rule.use.operands) > 1 else None
    if split is None:
        return rule.parts((x,), axis=axis, keepdims=rule.context.integer("keepdims", 1))
    is_known = split.rank == 1 or (split.rank == 0 and known_size(split) is not None)
    return rule.parts((x, split), axis=axis, keepdims=1) if is_known else None


def _lengths(rule: _Rule, size: Expr) -> list[Expr] | None:
    """Those of the parts that an axis of ``size`` is split into."""
    split = rule.use.operands[1] if len(rule.use.operands) > 1 else None
    if split is not None and split.rank > 0:
        if not split.shape[0].is_constant:
            return None
        return [size_of(rule.context, s, "the length of a part") for s in rule.context.integers(1)]
    numbers = [1] if split is None else rule.numbers(1)
    if numbers is None or not size.is_constant or numbers[0] < 1:
        return None
    if size.value > MOST_ELEMENTS * numbers[0]:
        return None
    whole, rest = divmod(size.value, numbers[0])
    return [constant(n) for n in [numbers[0]] * whole + [rest] * (rest > 0)]


_MAKERS = frozenset(("SequenceConstruct", "SequenceEmpty"))
_RULES: dict[str, Callable[[_Rule], list[Node] | None]] = {
    "ConcatFromSequence": _concat,
    "Identity": _identity,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}
