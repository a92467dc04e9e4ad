"""How an operator is described: one record per ONNX operator, and what its rule may ask for.

A *fission rule* turns one ONNX node into primitives. It receives a :class:`RuleContext` with the
operands as nodes, the attributes, and the scope, and returns one node per output. Rules register
themselves with :func:`operator`; ``OPERATORS`` is the table. Start with :class:`RuleContext`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Binding, Node, node, topological
from tilewright.ir.primitives import Broadcast, Cast, Concat, Constant, Input, Map, Reshape, Slice
from tilewright.ir.symbolic import (
    LARGEST,
    Contents,
    are_whole,
    elements_from,
    integer_contents,
    known_elements,
)
from tilewright.ops.schema import find_schema, type_names
from tilewright.shape import Expr, Guard, Scope, Truth, less_equal, product, symbol, values_of
from tilewright.shape import equal as equal_expression
from tilewright.support.errors import DimensionError, InvalidModelError, UnsupportedError

# A size that is large and divisible, for samples; and how many small sizes are tried.
_SAMPLE = 2520
_STEPS = 260
# Symbols and operations of a size that has no symbol of its own: of some 160 models most have 20 at
# most, and those whose sizes grow without end pass 110.
LONGEST_SIZE = 100

AttributeValue = int | float | str | bytes | np.ndarray[Any, Any] | list[Any] | object


class StructuralInput(UnsupportedError):
    """An operand that must be known when compiling (axes, a mode) is computed at run time.

    ``operand`` is the node; the operator then runs on the ONNX reference evaluator, unless the
    caller can make the operand a constant.
    """

    def __init__(self, message: str, operand: Node, *, where: str) -> None:
        self.operand = operand
        hint = "make it an initializer of the model, or allow fallback='reference'"
        super().__init__(message, where=where, hint=hint)


class NoRule(UnsupportedError):
    """This form of the operator has no fission rule; it runs on the ONNX reference evaluator."""


@dataclass
class ImportFacts:
    """What importing collects about symbols; shared by all nodes of one model.

    ``given`` are the symbols that the sizes of the model's inputs determine; ``labels`` says for
    people where nodes come from.
    """

    scope: Scope
    labels: Mapping[Node, str] = field(default_factory=dict[Node, str])
    guards: list[Guard] = field(default_factory=list[Guard])
    bindings: list[Binding] = field(default_factory=list[Binding])
    bound: dict[Node, Contents] = field(default_factory=dict[Node, Contents])
    given: frozenset[str] = frozenset()
    _checkpoint: tuple[tuple[int, int, int], ImportFacts] | None = field(default=None, repr=False)

    def checkpoint(self) -> ImportFacts:
        """The same facts, to go back to with :meth:`restore`; the last ones if nothing is new."""
        now = (self.scope.revision, len(self.guards), len(self.bindings))
        if self._checkpoint is None or self._checkpoint[0] != now:
            saved = ImportFacts(
                self.scope.copy(), {}, [*self.guards], [*self.bindings], {**self.bound}
            )
            self._checkpoint = (now, saved)
        return self._checkpoint[1]

    def restore(self, saved: ImportFacts) -> None:
        """Forget all that was learnt after ``saved`` was made by :meth:`checkpoint`."""
        self.scope.restore(saved.scope)
        self.guards[:] = saved.guards
        self.bindings[:] = saved.bindings
        self.bound = {**saved.bound}

    def told(self, names: Sequence[str], message: str) -> dict[str, str]:
        """What a person knows these symbols by: what holds them, and their name in a message."""
        held = {name: binding for binding in self.bindings for name in binding.symbols}
        told: dict[str, str] = {}
        for name in names:
            known = _held(name, held, self.labels)
            is_named = name in message or not known
            told[name] = f'"{name}"' + (f" ({known})" if known else "") if is_named else known
        return told

    def size(self, size: Expr) -> Expr:
        """A size as simple as the facts allow; one that is too long gets a symbol of its own.

        Sizes that cannot be proved equal are joined to formulas, and those again: such formulas
        grow without end, and nothing would ever be proved of them. A size that depends on values
        of a call stays, since its symbols are not known before.
        """
        resolved = self.scope.resolve(size)
        if resolved.length <= LONGEST_SIZE:
            return resolved
        known = self.given.union(self.scope.definitions)
        if not known.issuperset(resolved.free_symbols):
            return resolved
        return self.scope.define("size", resolved)


def _is_small(operand: Node) -> bool:
    """Whether the elements of a node are few enough, and as many in every call, to be followed."""
    return all(s.is_constant for s in operand.shape) and product(operand.shape).value <= LARGEST


def _held(name: str, held: Mapping[str, Binding], labels: Mapping[Node, str]) -> str:
    """What a symbol that is held by a node is for people, as "s"[0]; "" for any other symbol."""
    if name not in held:
        return ""
    source, place = held[name].source, held[name].symbols.index(name)
    while source not in labels and isinstance(source.primitive, Cast | Reshape):
        (source,) = source.inputs  # elements stay in their order
    text = _called(source, labels)
    if text is not None:
        axes = np.unravel_index(place, [s.value for s in source.shape])
        return f"{text}{[int(i) for i in axes] if source.rank else ''}"
    contents = integer_contents(source)
    if contents is not None:  # a size that a rule has found from other ones
        sources = [_held(n, held, labels) for n in sorted(contents.reshape(-1)[place].free_symbols)]
    else:
        below = (_called(n, labels) for n in reversed(topological([source])))
        sources = [next((found for found in below if found is not None), "")]
    known = " and ".join(dict.fromkeys(found for found in sources if found))
    return f"a value computed from {known}" if known else "a computed value"


def _called(found: Node, labels: Mapping[Node, str]) -> str | None:
    """What a person knows a node by: an input, or an operator of the model."""
    if isinstance(found.primitive, Input):
        return f'"{found.primitive.name}"'
    return None if isinstance(found.primitive, Constant) else labels.get(found)


@dataclass
class RuleContext:
    """One ONNX node while its rule runs.

    ``inputs`` holds None for an omitted optional operand. ``opset`` is the version of the node's
    domain. ``where`` names the node for messages, e.g. ``Softmax "/layer.0/softmax"``.
    """

    operator: str
    inputs: tuple[Node | None, ...]
    attributes: dict[str, AttributeValue]
    output_count: int
    opset: int
    where: str
    facts: ImportFacts

    @property
    def scope(self) -> Scope:
        """Facts about the symbols."""
        return self.facts.scope

    def operand(self, index: int) -> Node:
        """Operand ``index``; raises InvalidModelError if it is missing."""
        found = self.optional(index)
        if found is None:
            raise InvalidModelError(f"operand {index} is missing", where=self.where)
        return found

    def optional(self, index: int) -> Node | None:
        """Operand ``index`` or None."""
        return self.inputs[index] if index < len(self.inputs) else None

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer attribute; without a default it is required."""
        return self._typed(name, self._attribute(name, default), int)

    def number(self, name: str, default: float | None = None) -> float:
        """A float attribute. A default is a float32 as a given one is: 1e-5 is not quite 10⁻⁵."""
        default = None if default is None else float(np.float32(default))
        return float(self._typed(name, self._attribute(name, default), (int, float)))

    def text(self, name: str, default: str | None = None) -> str:
        """A string attribute."""
        value = self._typed(name, self._attribute(name, default), (bytes, str))
        return value.decode() if isinstance(value, bytes) else value

    def integer_list(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """A list of integers attribute."""
        values = self._typed(name, self._attribute(name, default), (list, tuple, range))
        return [self._typed(name, value, int) for value in values]

    def has(self, name: str) -> bool:
        """Whether the attribute is present."""
        return name in self.attributes

    def _attribute(self, name: str, default: object) -> object:
        if name in self.attributes:
            return self.attributes[name]
        if default is None:
            raise InvalidModelError(f"attribute {name!r} is missing", where=self.where)
        return default

    def _typed(self, name: str, value: object, kind: type | tuple[type, ...]) -> Any:
        """An attribute's value, which must be of a type that the rule can use."""
        if not isinstance(value, kind):
            message = f"attribute {name!r} has a value of type {type(value).__name__}"
            raise InvalidModelError(message, where=self.where)
        return value

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """The contents of operand ``index`` if it is a constant tensor, else None."""
        found = self.optional(index)
        if found is not None and isinstance(found.primitive, Constant):
            return found.primitive.array
        return None

    def static_integers(self, index: int, what: str) -> list[int]:
        """Operand ``index`` as integers known now; raises StructuralInput otherwise."""
        operand = self.operand(index)
        contents = integer_contents(operand)
        if contents is not None:
            resolved = [self.scope.resolve(e) for e in contents.reshape(-1)]
            if all(e.is_constant for e in resolved):
                return [e.value for e in resolved]
        raise StructuralInput(f"{what} must be known when compiling", operand, where=self.where)

    def integers(self, index: int) -> list[Expr]:
        """Operand ``index`` (integer tensor of constant shape, flattened) as expressions.

        Shape arithmetic is evaluated symbolically; anything else becomes fresh symbols that take
        the operand's contents at run time. Raises StructuralInput if its length is not known.
        """
        contents = self._contents(self.operand(index))
        return [self.scope.resolve(e) for e in contents.reshape(-1)]

    def _contents(self, operand: Node) -> Contents:
        """Contents with run-time symbols for as few values as they depend on.

        Where a vector is assembled from dimensions and a few run-time values, only the latter
        become symbols, so that what is known of the rest is not lost.
        """
        leaves = self._leaves(operand)
        if leaves is not None:
            count = sum(product(leaf.shape).value for leaf in leaves)
            if count <= product(operand.shape).value and operand not in leaves:
                contents = self._express(operand, leaves)
                if contents is not None and are_whole(contents):
                    return contents
        return self.bind(operand)

    def _leaves(self, operand: Node) -> dict[Node, None] | None:
        """The integer nodes that decide a small node's contents, as far as arithmetic goes."""
        found: dict[Node, dict[Node, None] | None] = {}
        for current in topological([operand], self._computed_from):
            parts = [found[i] for i in self._computed_from(current)]
            known = [part for part in parts if part is not None]
            if self._is_known(current):
                found[current] = {}
            elif known and len(known) == len(parts):
                found[current] = {leaf: None for part in known for leaf in part}
            else:
                is_leaf = current.dtype.is_integer and _is_small(current)
                found[current] = {current: None} if is_leaf else None
        return found[operand]

    def _is_known(self, operand: Node) -> bool:
        return operand in self.facts.bound or known_elements(operand) is not None

    def _computed_from(self, operand: Node) -> tuple[Node, ...]:
        """The operands of arithmetic whose result is not known by itself."""
        arithmetic = Map | Cast | Concat | Reshape | Broadcast | Slice
        is_computed = _is_small(operand) and isinstance(operand.primitive, arithmetic)
        return operand.inputs if is_computed and not self._is_known(operand) else ()

    def _express(self, operand: Node, leaves: dict[Node, None]) -> Contents | None:
        """Contents of a node by those of its leaves, which are bound to symbols."""

        def needed(current: Node) -> tuple[Node, ...]:
            return () if current in leaves else self._computed_from(current)

        found: dict[Node, Contents | None] = {}
        for current in topological([operand], needed):
            known = known_elements(current)
            if known is None and (current in leaves or current in self.facts.bound):
                known = self.bind(current)
            parts = [found[i] for i in needed(current)]
            given = [part for part in parts if part is not None]
            if known is None and len(given) == len(parts):
                known = elements_from(current, given)
            found[current] = known
        return found[operand]

    def bind(self, operand: Node) -> Contents:
        """Fresh symbols that take the contents of an integer node of constant shape at run time."""
        if operand in self.facts.bound:
            return self.facts.bound[operand]
        if not operand.dtype.is_integer or not all(s.is_constant for s in operand.shape):
            message = "an operand that decides sizes must be an integer tensor of known length"
            raise StructuralInput(message, operand, where=self.where)
        shape = tuple(s.value for s in operand.shape)
        contents: Contents = np.empty(shape, dtype=object)
        names: list[str] = []
        for index in np.ndindex(*shape):
            fresh = self.scope.fresh("value", low=0 if operand.dtype.is_unsigned else None)
            contents[index] = fresh
            names.append(str(fresh))
        self.facts.bindings.append(Binding(operand, tuple(names)))
        self.facts.bound[operand] = contents
        return contents

    def require_equal(self, a: Expr, b: Expr, message: str) -> None:
        """Demand a == b: an error now if impossible, a guard and a fact if not known."""
        truth = self.scope.is_equal(a, b)
        if truth is Truth.NO:
            raise InvalidModelError(f"{message}: {a.brief} is not {b.brief}", where=self.where)
        if truth is Truth.UNKNOWN and not self._require_larger(a, b, message):
            left, right = self.scope.resolve(a).brief, self.scope.resolve(b).brief
            self.require(equal_expression(a, b), f"{message}: {left} must equal {right}")
            self.scope.assume_equal(a, b)

    def _require_larger(self, a: Expr, b: Expr, message: str) -> bool:
        """Demand lower bounds where ``a`` is ``b`` for all but the smallest sizes.

        Models compute sizes by truncating division, which is off by one where an axis is shorter
        than a kernel: they fail there, and everywhere else the sizes are equal.
        """
        least: dict[str, int] = {}
        for name in (a - b).free_symbols:
            bound = self._equal_from(a, b, name)
            if bound is not None:
                least[name] = bound
        if not least:
            return False
        trial = self.scope.copy()
        for name, bound in least.items():
            trial.declare(name, low=bound)
        if trial.is_equal(a, b) is not Truth.YES:
            return False
        for name, bound in least.items():
            self.require(less_equal(bound, symbol(name)), f"{message} unless {name} >= {bound}")
            self.scope.declare(name, low=bound)
        return True

    def _equal_from(self, a: Expr, b: Expr, name: str) -> int | None:
        """The size from which on samples of two sizes agree, if they differ at all below it."""
        values: dict[str, int] = {}
        for other in (a - b).free_symbols:
            high = self.scope.bounds(symbol(other)).high
            values[other] = _SAMPLE if high is None else min(high, _SAMPLE)
        low = self.scope.bounds(symbol(name)).low
        if low is None:
            return None
        agreed = [_agree(a, b, values | {name: low + step}) for step in range(_STEPS)]
        first = agreed.index(True) if True in agreed else 0
        return low + first if first and all(agreed[first:]) else None

    def require(self, condition: Expr, message: str, *, valued: bool = True) -> None:
        """Demand that ``condition`` is not 0 in every call (checked at run time).

        The sizes that it depends on are added to the message where it is ``valued``.
        """
        resolved = self.scope.resolve(condition)
        if resolved.is_constant and resolved.value != 0:
            return
        if resolved.is_constant:
            raise InvalidModelError(message, where=self.where)
        names = resolved.free_symbols if valued else ()
        values = values_of(self.facts.told(names, message))
        self.facts.guards.append(Guard(resolved, f"{self.where}: {message}{values}"))


def _agree(a: Expr, b: Expr, values: dict[str, int]) -> bool:
    try:
        return a.evaluate(values) == b.evaluate(values)
    except DimensionError:
        return False


Rule = Callable[[RuleContext], Sequence[Node]]


@dataclass(frozen=True)
class Operator:
    """One ONNX operator: domain, name, first opset of this rule, rule, and how halves are treated.

    ``computes`` means that 16-bit float operands are computed in float32 and the float results
    rounded back; operators that only move elements set it to False.
    """

    domain: str
    name: str
    since: int
    rule: Rule
    computes: bool


OPERATORS: dict[tuple[str, str], list[Operator]] = {}


def operator(
    name: str, *, since: int = 1, domain: str = "", computes: bool = True
) -> Callable[[Rule], Rule]:
    """Register a fission rule for opsets from ``since`` on (the newest fitting one is used)."""

    def register(rule: Rule) -> Rule:
        rows = OPERATORS.setdefault((domain, name), [])
        rows.append(Operator(domain, name, since, rule, computes))
        rows.sort(key=_since)
        return rule

    return register


def _since(row: Operator) -> int:
    return row.since


def find_operator(domain: str, name: str, opset: int) -> Operator | None:
    """The record for an operator at an opset, or None."""
    fitting = [row for row in OPERATORS.get((domain, name), []) if row.since <= opset]
    return fitting[-1] if fitting else None


def apply_rule(row: Operator, context: RuleContext) -> list[Node]:
    """Run a rule, computing 16-bit floats in float32 where the record says so."""
    given = context.inputs
    if not row.computes or not any(i is not None and i.dtype.is_half for i in given):
        return list(row.rule(context))
    context.inputs = tuple(
        node(Cast(DType.FLOAT32), i) if i is not None and i.dtype.is_half else i
        for i in context.inputs
    )
    made = row.rule(context)
    wanted = _result_types(row, context.opset, given, len(made))
    return [
        node(Cast(dtype), out) if out.dtype is DType.FLOAT32 and dtype.is_half else out
        for out, dtype in zip(made, wanted, strict=True)
    ]


def _result_types(
    row: Operator, opset: int, operands: Sequence[Node | None], count: int
) -> list[DType]:
    """The types of float results: those of operands of the same type by ONNX, else of a half."""
    schema = find_schema(row.domain, row.name, opset)
    present = [(i, o.dtype) for i, o in enumerate(operands) if o is not None]
    half = next(dtype for _, dtype in present if dtype.is_half)
    if schema is None:
        return [half] * count
    names = type_names(schema.inputs, len(operands))
    known = {names[i]: dtype for i, dtype in reversed(present) if names[i]}
    return [known.get(name, half) for name in type_names(schema.outputs, count)]
