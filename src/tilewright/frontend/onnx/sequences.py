"""Operators on sequences whose elements are known when compiling: no sequence is ever made of them.

A sequence of known elements is a call of SequenceConstruct (SequenceEmpty without any), whose
operands they are. What takes one apart again, or changes it at a position that is known, gets the
elements, so that nothing is left of the calls but where something else needs the sequence: those
run on the reference evaluator, and so do operators at positions that only a call tells, or that
are outside of the sequence. Start with :func:`by_elements`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import helper

from tilewright.frontend.onnx.opaque import OpaqueCall, opaque_nodes
from tilewright.frontend.onnx.report import Fallback
from tilewright.frontend.onnx.state import State, Use
from tilewright.ir.graph import Node, topological
from tilewright.ir.primitives import Opaque
from tilewright.ir.symbolic import integer_contents
from tilewright.ops.build import Builder, dimension
from tilewright.ops.record import RuleContext
from tilewright.shape import Expr, constant
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
    for fallback in found:
        count = state.compiled.pop(fallback.operator, 0)
        if count > 1:
            state.compiled[fallback.operator] = count - 1
    return found


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
        first = self.use.operands[0]
        primitive = None if first is None else first.primitive
        is_known = isinstance(primitive, Opaque) and primitive.operator in _MAKERS
        return first.inputs if first is not None and is_known else None

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
        state, where = self.state, self.use.where
        opsets = {k: v for k, v in self.use.frame.opsets.items() if k != "ai.onnx"}
        call = OpaqueCall(proto, where, elements, (), opsets, (), (None,), (None,), (True,), 0)
        (made,) = opaque_nodes(call, state.scope, state.objects)
        if made is None:
            return None
        state.labels.setdefault(made, where)
        reason = "its sequence is needed as a whole"
        state.sequences.setdefault(made, Fallback(self.use.name, where, reason))
        return [made]

    def element_type(self) -> int:
        """That of the sequence that the first operand is."""
        first = self.use.operands[0]
        found = None if first is None else self.state.objects.get(first)
        kind = onnx.TypeProto() if found is None else found
        return kind.sequence_type.elem_type.tensor_type.elem_type


def _construct(rule: _Rule) -> list[Node] | None:
    elements = rule.context.inputs
    if not elements or None in elements:
        return None
    return rule.sequence(tuple(e for e in elements if e is not None), 0)


def _empty(rule: _Rule) -> list[Node] | None:
    return rule.sequence((), rule.context.integer("dtype", onnx.TensorProto.FLOAT))


def _identity(rule: _Rule) -> list[Node] | None:
    first = rule.use.operands[0] if rule.use.operands else None
    return [first] if first is not None and rule.elements() is not None else None


def _length(rule: _Rule) -> list[Node] | None:
    elements = rule.elements()
    return None if elements is None else [dimension(len(elements))]


def _at(rule: _Rule) -> list[Node] | None:
    elements, place = rule.elements(), rule.position(1)
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
    return rule.sequence(tuple(left), rule.element_type())


def _concat(rule: _Rule) -> list[Node] | None:
    elements, b = rule.elements(), rule.builder
    if not elements:
        return None
    is_new = rule.context.integer("new_axis", 0)
    axis = b.axis(rule.context.integer("axis"), elements[0].rank + is_new)
    return [b.concat([b.unsqueeze(e, [axis]) if is_new else e for e in elements], axis)]


def _split(rule: _Rule) -> list[Node] | None:
    x, b = rule.use.operands[0], rule.builder
    if x is None or not x.dtype.is_native:
        return None
    axis = b.axis(rule.context.integer("axis", 0), x.rank)
    lengths = _lengths(rule, rule.state.scope.resolve(x.shape[axis]))
    if lengths is None or not 0 < len(lengths) <= MOST_ELEMENTS or min(lengths) < 0:
        return None
    whole = constant(sum(lengths))
    rule.context.require_equal(x.shape[axis], whole, "the parts are not the whole")
    is_single = len(rule.use.operands) < 2 and not rule.context.integer("keepdims", 1)
    parts: list[Node] = []
    for number, length in enumerate(lengths):
        part = b.slice_axis(x, axis, sum(lengths[:number]), length)
        sizes = [s for a, s in enumerate(part.shape) if a != axis or not is_single]
        parts.append(b.reshape(part, sizes))
    return rule.sequence(tuple(parts), 0)


def _lengths(rule: _Rule, size: Expr) -> list[int] | None:
    """Those of the parts that an axis of ``size`` is split into."""
    split = rule.use.operands[1] if len(rule.use.operands) > 1 else None
    numbers = [1] if split is None else rule.numbers(1)
    if numbers is None or (split is not None and split.rank > 0):
        return numbers
    if not size.is_constant or numbers[0] < 1 or size.value > MOST_ELEMENTS * numbers[0]:
        return None
    whole, rest = divmod(size.value, numbers[0])
    return [numbers[0]] * whole + [rest] * (rest > 0)


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
