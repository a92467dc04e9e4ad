"""Steps whose sizes or data come from sizes, or from data: ranges, tables, masks, NonZero."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from .builder import Builder, Rejected

TABLE = 64  # rows of a constant that is sliced or gathered by sizes, as positions are


def size_as_data(b: Builder) -> None:
    """A size that takes part in arithmetic."""
    value = b.pick(lambda v: v.rank >= 1)
    size = b.scalar_size(value, b.chance.randrange(value.rank))
    to = b.chance.choice((TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT64))
    number = b.node("Cast", size, to=to)
    if to == TensorProto.FLOAT:
        other = b.pick(lambda v: v.dtype == np.float32)
        b.node(b.chance.choice(("Mul", "Add", "Sub")), other, number)


def positions(b: Builder) -> None:
    """0, 1, … up to a size, perhaps from another or backwards."""
    value = b.pick(lambda v: v.rank >= 1)
    size = b.scalar_size(value, b.chance.randrange(value.rank))
    zero, one = b.constant(0, "int64"), b.constant(1, "int64")
    kind = b.chance.randrange(4)
    if kind == 0:
        minus = b.constant(-1, "int64")
        last = b.node("Sub", size, one)
        b.node("Range", last, minus, minus)
    elif kind == 1:
        step = b.constant(b.chance.choice((2, 3)), "int64")
        b.node("Range", zero, size, step)
    elif kind == 2:
        other = b.pick(lambda v: v.rank >= 1)
        end = b.node("Add", size, b.scalar_size(other, b.chance.randrange(other.rank)))
        b.node("Range", size, end, one)
    else:
        b.node("Range", zero, size, one)


def table_by_size(b: Builder) -> None:
    """Rows of a constant that sizes choose: slices and gathers of learned positions."""
    value = b.pick(lambda v: v.rank >= 1)
    axis = b.chance.randrange(value.rank)
    width = b.chance.choice((1, 3, 8))
    table = b.weights(TABLE, width) if b.flip(0.8) else b.weights(TABLE)
    kind = b.chance.randrange(4)
    if kind == 0:
        b.node("Slice", table, b.integers(0), b.size(value, axis), b.integers(0))
    elif kind == 1:
        start = b.size(value, axis)
        other = b.pick(lambda v: v.rank >= 1)
        end = b.node("Add", start, b.size(other, b.chance.randrange(other.rank)))
        b.node("Slice", table, start, end)
    elif kind == 2:
        b.node("Gather", table, b.scalar_size(value, axis))
    else:
        size = b.scalar_size(value, axis)
        b.node(
            "Gather", table, b.node("Range", b.constant(0, "int64"), size, b.constant(1, "int64"))
        )


def filled(b: Builder) -> None:
    """ConstantOfShape of a shape that is there, then used."""
    value = b.pick()
    fill = helper.make_tensor("fill", TensorProto.FLOAT, [1], [b.chance.choice((0.0, 1.0, -2.5))])
    made = b.node("ConstantOfShape", b.node("Shape", value), value=fill)
    if value.dtype == np.float32 and b.flip():
        b.node("Add", made, value)


def eye(b: Builder) -> None:
    b.node("EyeLike", b.pick(lambda v: v.rank == 2 and v.is_float), k=b.chance.choice((-1, 0, 1)))


def causal_mask(b: Builder) -> None:
    """Places after one's own are masked in a square of scores."""
    value = b.pick(lambda v: v.rank >= 2 and v.dtype == np.float32)
    zero, one = b.constant(0, "int64"), b.constant(1, "int64")
    rows = b.node("Range", zero, b.scalar_size(value, value.rank - 2), one)
    columns = b.node("Range", zero, b.scalar_size(value, value.rank - 1), one)
    rows = b.node("Unsqueeze", rows, b.integers(1))
    seen = b.node("LessOrEqual", columns, rows)
    masked = b.node("Where", seen, value, b.constant(-1e4, "float32"))
    if b.flip():
        b.node("Softmax", masked, axis=-1)


def non_zero(b: Builder) -> None:
    """Where a condition holds; what is there; how much of it there is."""
    value = b.pick(lambda v: 1 <= v.rank <= 3)
    if value.is_float:
        condition = b.node("Greater", value, b.constant(0.0, value.dtype.name))
    else:
        condition = value
    places = b.node("NonZero", condition)
    kind = b.chance.randrange(4)
    if kind == 0:
        b.node("GatherND", value, b.node("Transpose", places, perm=[1, 0]))
    elif kind == 1:
        count = b.scalar_size(places, 1)
        b.node("Cast", count, to=TensorProto.FLOAT)
    elif kind == 2:
        b.node("ReduceSum", places, b.integers(1), keepdims=int(b.flip()))


def compress(b: Builder) -> None:
    value = b.pick(lambda v: v.rank >= 1)
    axis = b.chance.randrange(value.rank)
    condition = b.input("bool", [b.dim_for(value.sizes(axis))])
    if b.flip(0.2) and value.rank == 1:
        b.node("Compress", value, condition)
    else:
        b.node("Compress", value, condition, axis=axis)


def range_by_data(b: Builder) -> None:
    """As long as the data say."""
    if b.flip():
        limit = b.input("int64", [], 0, 7)
    else:
        value = b.pick(lambda v: v.dtype == np.int64 and v.rank >= 1)
        limit = b.node("ReduceSum", b.node("Abs", value), keepdims=0)
    one = b.constant(1, "int64")
    made = b.node("Range", b.constant(0, "int64"), limit, one)
    kind = b.chance.randrange(3)
    if kind == 0:
        b.node("Mul", b.node("Cast", made, to=TensorProto.FLOAT), b.constant(0.5, "float32"))
    elif kind == 1:
        column = b.node("Unsqueeze", made, b.integers(1))
        b.node("Equal", column, made)


def expand_by_data(b: Builder) -> None:
    """A size that is read from an input."""
    value = b.pick(lambda v: v.rank <= 2)
    size = b.input("int64", [1], 0, 6)
    shape = b.node("Concat", size, b.node("Shape", value), axis=0)
    b.node("Expand", value, shape)


def rows_by_data(b: Builder) -> None:
    """A slice as long as an input says."""
    value = b.pick(lambda v: v.rank >= 1)
    b.node("Slice", value, b.integers(0), b.input("int64", [1], -4, 7), b.integers(0))


def unique(b: Builder) -> None:
    value = b.pick(lambda v: v.dtype == np.int64)
    b.node("Unique", value, sorted=1)


def reverse_sequence(b: Builder) -> None:
    value = b.pick(lambda v: v.rank >= 2)
    lengths = [array.shape[0] for array in value.arrays if array is not None]
    if min(lengths) < 1:
        raise Rejected("nothing to reverse")
    count = b.dim_for(value.sizes(1))
    b.node("ReverseSequence", value, b.input("int64", [count], 1, min(lengths)))


# ---------------------------------------------------------------- nested graphs


def _info(name: str, kind: int = TensorProto.FLOAT, rank: int | None = None) -> object:
    return helper.make_tensor_value_info(name, kind, None if rank is None else [None] * rank)


def scan(b: Builder) -> None:
    """A running sum of rows that forgets, by Scan."""
    value = b.pick(lambda v: v.dtype == np.float32 and v.rank >= 2)
    row = value.rank - 1
    state, item, new, out = (b.fresh("s") for _ in range(4))
    half = b.fresh("s")
    nodes = [
        helper.make_node("Mul", [state, half], [f"{half}m"]),
        helper.make_node("Add", [f"{half}m", item], [new]),
        helper.make_node("Tanh", [new], [out]),
    ]
    constant = helper.make_tensor(half, TensorProto.FLOAT, [], [0.5])
    body = helper.make_graph(
        nodes,
        "body",
        [_info(state, rank=row), _info(item, rank=row)],
        [_info(new, rank=row), _info(out, rank=row)],
        [constant],
    )
    start = b.node(
        "ReduceSum", b.node("Mul", value, b.constant(0.0, "float32")), b.integers(0), keepdims=0
    )
    b.nodes_of("Scan", 2, start, value, body=body, num_scan_inputs=1)


def loop(b: Builder) -> None:
    """As many rounds as a size or an input says."""
    value = b.pick(lambda v: v.dtype == np.float32)
    if b.flip():
        sized = b.pick(lambda v: v.rank >= 1)
        count = b.scalar_size(sized, b.chance.randrange(sized.rank))
    else:
        count = b.input("int64", [], 0, 5)
    index, go, state, going, new = (b.fresh("l") for _ in range(5))
    nodes = [
        helper.make_node("Identity", [go], [going]),
        helper.make_node(b.chance.choice(("Sin", "Tanh", "Softsign")), [state], [new]),
    ]
    flag = TensorProto.BOOL
    body = helper.make_graph(
        nodes,
        "body",
        [_info(index, TensorProto.INT64, 0), _info(go, flag, 0), _info(state, rank=value.rank)],
        [_info(going, flag, 0), _info(new, rank=value.rank)],
    )
    b.node("Loop", count, b.constant(True, "bool"), value, body=body)


def branch(b: Builder) -> None:
    """One way or the other by a size or by data."""
    value = b.pick(lambda v: v.is_float)
    if b.flip():
        sized = b.pick(lambda v: v.rank >= 1)
        size = b.scalar_size(sized, b.chance.randrange(sized.rank))
        condition = b.node("Greater", size, b.constant(2, "int64"))
    else:
        condition = b.input("bool", [])
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    graphs = []
    for operator in b.chance.sample(("Neg", "Abs", "Tanh", "Relu"), 2):
        out = b.fresh("i")
        made = helper.make_node(operator, [value.name], [out])
        graphs.append(helper.make_graph([made], "branch", [], [_info(out, kind, value.rank)]))
    then, other = graphs
    b.nodes_of("If", 1, condition, captured=[value], then_branch=then, else_branch=other)


STEPS = {
    size_as_data: 2,
    positions: 2,
    table_by_size: 3,
    filled: 2,
    eye: 1,
    causal_mask: 1,
    non_zero: 2,
    compress: 1,
    range_by_data: 1,
    expand_by_data: 1,
    rows_by_data: 1,
    unique: 1,
    reverse_sequence: 1,
    scan: 1,
    loop: 1,
    branch: 1,
}
