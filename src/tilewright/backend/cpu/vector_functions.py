"""Functions of whole vectors that LLVM's vectoriser calls in place of those of one element.

A function of one element that needs instructions on whole registers (lookups, branches for rare
arguments) cannot be written as scalar code that the vectoriser widens. It becomes a function of the
module in several widths instead, which are announced as variants of the narrowest by LLVM's
attribute "vector-function-abi-variant". The vectoriser picks a width; then ``inlining``
puts the functions where they are called. Until then they are weak, so that nothing looks into them.
Start with :func:`call`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from tilewright.backend.cpu.inlining import PREFIX
from tilewright.backend.cpu.math_arithmetic import Arithmetic, call_intrinsic, lanes_of

Body = Callable[..., ir.Value]  # of an Arithmetic and one or several values of one type

_BOOL = ir.IntType(1)


class _Variants(ir.FunctionAttributes):
    """The attributes of a function of one element, with the variants of it."""

    def __init__(self, mangled: Sequence[str]) -> None:
        super().__init__(("nounwind", "readnone"))
        self.mangled = ",".join(mangled)

    def _to_list(self, ret_type: ir.Type) -> list[str]:
        return [*super()._to_list(ret_type), f'"vector-function-abi-variant"="{self.mangled}"']


def call(a: Arithmetic, name: str, body: Body, *operands: ir.Value) -> ir.Value:
    """``name``, which ``body`` computes on whole registers, of operands of any number of lanes.

    They are the floats of ``a``, or integers as wide, and so is the result.
    """
    module = a.builder.module
    if f"{PREFIX}{name}.1" not in module.globals:
        _define(a, name, body, [_element(x) for x in operands])
    if a.lanes == 1:
        return a.builder.call(module.globals[f"{PREFIX}{name}.1"], operands)
    if a.lanes > a.level.lanes(a.bits // 8):
        half = a.lanes // 2
        narrow = _with_lanes(a, a.builder, half)
        low, high = (
            call(narrow, name, body, *(_lanes(a.builder, x, first, half) for x in operands))
            for first in (0, half)
        )
        return a.builder.shuffle_vector(low, high, _order(range(a.lanes)))
    mask = ir.Constant(ir.VectorType(_BOOL, a.lanes), [True] * a.lanes)
    return a.builder.call(module.globals[f"{PREFIX}{name}.{a.lanes}"], [*operands, mask])


def _element(x: ir.Value) -> ir.Type:
    return x.type.element if isinstance(x.type, ir.VectorType) else x.type


def _define(a: Arithmetic, name: str, body: Body, kinds: Sequence[ir.Type]) -> None:
    """The function of elements of these types, and of 2, 4, ... of each up to a whole register."""
    whole = a.level.lanes(a.bits // 8)
    widths: list[int] = []
    while not widths or widths[-1] < whole:
        widths.append(2 * widths[-1] if widths else 2)
    one = _function(a, f"{PREFIX}{name}.1", 1, (body, kinds))
    # The letter M says that they take a mask, too: such ones serve loops with conditions as well.
    one.attributes = _Variants(
        [f"_ZGV_LLVM_M{n}{'v' * len(kinds)}_{one.name}({PREFIX}{name}.{n})" for n in widths]
    )
    for lanes in widths:
        _function(a, f"{PREFIX}{name}.{lanes}", lanes, (body, kinds))


def _function(
    a: Arithmetic, name: str, lanes: int, what: tuple[Body, Sequence[ir.Type]]
) -> ir.Function:
    """A function that fills registers, computes on all of them, and gives back the first lanes.

    ``what`` is its body and the types of its operands.
    """
    body, elements = what
    kinds = [lanes_of(element, lanes) for element in elements]
    mask = [ir.VectorType(_BOOL, lanes)] * (lanes > 1)
    function = ir.Function(a.builder.module, ir.FunctionType(kinds[0], [*kinds, *mask]), name)
    function.linkage = "weak"
    for attribute in ("nounwind", "readnone"):
        function.attributes.add(attribute)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    wide = _with_lanes(a, builder, a.level.lanes(a.bits // 8))
    value = body(wide, *(_filled(wide, x) for x in function.args[: len(kinds)]))
    if lanes == 1:
        value = builder.extract_element(value, ir.Constant(ir.IntType(32), 0))
    elif lanes < wide.lanes:
        value = _lanes(builder, value, 0, lanes)
    builder.ret(value)
    return function


def _filled(wide: Arithmetic, x: ir.Value) -> ir.Value:
    """A register whose first lanes are ``x``, the others its last one, as branches ask them too."""
    if not isinstance(x.type, ir.VectorType):
        nothing = ir.Constant(lanes_of(x.type, wide.lanes), ir.Undefined)
        first = wide.builder.insert_element(nothing, x, ir.Constant(ir.IntType(32), 0))
        return wide.builder.shuffle_vector(first, nothing, _order([0] * wide.lanes))
    return x if x.type.count == wide.lanes else _lanes(wide.builder, x, 0, wide.lanes)


def unless_rare(
    a: Arithmetic,
    operands: Sequence[ir.Value],
    usual: ir.Value,
    is_rare: ir.Value,
    otherwise: tuple[str, Body],
) -> ir.Value:
    """``usual``, and in lanes that are rare what a named function gives, called if there are any.

    What a lane holds does not depend on the others.
    """
    name, body = otherwise
    function = a.builder.module.globals.get(name)
    if function is None:
        kind = ir.FunctionType(usual.type, [x.type for x in operands])
        function = ir.Function(a.builder.module, kind, name)
        function.linkage = "internal"
        for attribute in ("nounwind", "readnone", "noinline"):
            function.attributes.add(attribute)
        inner = ir.IRBuilder(function.append_basic_block("entry"))
        inner.ret(body(_with_lanes(a, inner, a.lanes), *function.args))
    build = a.builder
    some = call_intrinsic(build, "vector.reduce.or", _BOOL, [is_rare.type], [is_rare])
    before = build.block
    rare = build.append_basic_block("rare")
    joined = build.append_basic_block("joined")
    build.cbranch(some, rare, joined).set_weights([1, 1 << 20])
    build.position_at_end(rare)
    exact = build.select(is_rare, build.call(function, operands), usual)
    build.branch(joined)
    build.position_at_end(joined)
    value = build.phi(usual.type)
    value.add_incoming(usual, before)
    value.add_incoming(exact, rare)
    return value


def _with_lanes(a: Arithmetic, builder: ir.IRBuilder, lanes: int) -> Arithmetic:
    return Arithmetic(builder, a.level, lanes, a.bits)


def _lanes(builder: ir.IRBuilder, x: ir.Value, first: int, count: int) -> ir.Value:
    """``count`` lanes of a vector from one on; those after its last are the last one again."""
    assert isinstance(x.type, ir.VectorType)
    last = x.type.count - 1
    nothing = ir.Constant(x.type, ir.Undefined)
    order = _order([min(lane, last) for lane in range(first, first + count)])
    return builder.shuffle_vector(x, nothing, order)


def _order(lanes: Sequence[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes))
