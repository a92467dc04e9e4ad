"""Steps that add up: products, also of a value with itself, reductions and normalisations."""

from __future__ import annotations

import numpy as np

from .builder import Builder, Rejected, Value

REDUCTIONS = (
    "Sum", "Sum", "Mean", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum",
    "LogSumExp",
)  # fmt: skip
WIDTHS = (1, 3, 4, 8, 17)


def reduce(b: Builder) -> None:
    operator = "Reduce" + b.chance.choice(REDUCTIONS)
    exact = operator in ("ReduceSum", "ReduceMax", "ReduceMin")
    value = b.pick(lambda v: v.is_float or (exact and v.is_integer))
    if operator == "ReduceLogSum":
        value = b.node("Abs", value)
    keep = int(b.flip())
    kind = b.chance.randrange(5)
    if kind == 0:
        b.node(operator, value, keepdims=keep)
    elif kind == 1:
        noop = int(b.flip())
        axes = b.integers() if b.flip() else None
        b.node(operator, value, axes, keepdims=keep, noop_with_empty_axes=noop)
    elif value.rank:
        count = b.chance.randrange(1, value.rank + 1)
        axes = b.chance.sample(range(value.rank), count)
        signed = [a - value.rank if b.flip() else a for a in axes]
        b.node(operator, value, b.integers(*signed), keepdims=keep)


def arg_reduce(b: Builder) -> None:
    value = b.pick(lambda v: v.rank >= 1 and v.dtype.kind == "f")
    operator = b.chance.choice(("ArgMax", "ArgMin"))
    last = int(b.flip(0.3))
    b.node(operator, value, axis=b.axis(value), keepdims=int(b.flip()), select_last_index=last)


def own_transpose(b: Builder) -> None:
    """A product of one operand with its own transpose, either way around."""
    value = b.pick_float(2, 4)
    order = list(range(value.rank))
    order[-1], order[-2] = order[-2], order[-1]
    turned = b.node("Transpose", value, perm=order)
    pair = (value, turned) if b.flip() else (turned, value)
    if b.flip(0.15):
        pair = (value, value)
    b.node("MatMul", *pair)


def matmul(b: Builder) -> None:
    """With weights, an input, or a value that fits."""
    value = b.pick_float(1, 4)
    inner = value.sizes(-1)
    kind = b.chance.randrange(4)
    if kind == 0 and value.is_static(-1):
        width = b.chance.choice(WIDTHS)
        b.node("MatMul", value, b.weights(inner[0], width, dtype=value.dtype.name))
    elif kind == 1:
        found = [v for v in b.values if v.dtype == value.dtype and _multiplies(value, v)]
        if not found:
            raise Rejected("nothing to multiply with")
        b.node("MatMul", value, b.chance.choice(found))
    else:
        last = b.chance.choice([*b.shapes[0], *WIDTHS])
        dims: list[str | int] = [b.dim_for(inner), last]
        if b.flip(0.2):
            dims.pop()
        elif value.rank > 2 and b.flip():
            dims = [b.dim_for(value.sizes(a)) for a in range(value.rank - 2)] + dims
        other = b.input(value.dtype.name, dims)
        if b.flip(0.15) and value.rank == 2 and len(dims) == 2:
            turned = b.node("Transpose", other, perm=[1, 0])
            b.node("MatMul", turned, b.node("Transpose", value, perm=[1, 0]))
        else:
            b.node("MatMul", value, other)


def _multiplies(one: Value, other: Value) -> bool:
    for x, y in zip(one.arrays, other.arrays, strict=True):
        if x is None or y is None:
            continue
        if not x.ndim or not y.ndim or x.shape[-1] != y.shape[-2 if y.ndim > 1 else 0]:
            return False
        try:
            np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        except ValueError:
            return False
    return True


def gemm(b: Builder) -> None:
    value = b.pick_float(2, 2)
    turned, other_turned = int(b.flip(0.3)), int(b.flip(0.4))
    inner = b.dim_for(value.sizes(0 if turned else 1))
    width = b.chance.choice([*b.shapes[0], *WIDTHS])
    dims = [width, inner] if other_turned else [inner, width]
    other = b.input(value.dtype.name, dims)
    added = None
    if b.flip():
        rows = b.dim_for(value.sizes(1 if turned else 0))
        choices: tuple[list[str | int], ...] = ([width], [1], [rows, width], [rows, 1], [])
        added = b.input(value.dtype.name, b.chance.choice(choices))
    attributes = {"alpha": b.chance.choice((1.0, 0.5)), "beta": b.chance.choice((1.0, 2.0, 0.0))}
    operands = [value, other] + ([added] if added is not None else [])
    b.node("Gemm", *operands, transA=turned, transB=other_turned, **attributes)


EQUATIONS = ("ij,kj->ik", "ij,ij->i", "ij->ji", "ij->j", "ij,jk->ki", "bij,bkj->bik", "bij->bj",
             "ij,ij->", "ij,j->i", "i,j->ij", "bij,kj->bik", "ii->i", "bij,bij->bi")  # fmt: skip


def einsum(b: Builder) -> None:
    equation = b.chance.choice(EQUATIONS)
    terms = equation.split("->")[0].split(",")
    value = b.pick_float(len(terms[0]), len(terms[0]))
    if len(terms) == 1:
        b.node("Einsum", value, equation=equation)
        return
    known = {letter: b.dim_for(value.sizes(k)) for k, letter in enumerate(terms[0])}
    dims = [known.get(letter, b.chance.choice([*b.shapes[0]])) for letter in terms[1]]
    b.node("Einsum", value, b.input(value.dtype.name, dims), equation=equation)


def softmax(b: Builder) -> None:
    value = b.pick_float(1)
    operator = b.chance.choice(("Softmax", "Softmax", "LogSoftmax", "Hardmax"))
    b.node(operator, value, axis=b.axis(value))


def layer_norm(b: Builder) -> None:
    value = b.pick_float(1)
    axis = b.axis(value)
    first = axis % value.rank
    dims = [b.dim_for(value.sizes(a)) for a in range(first, value.rank)]
    scale = b.input(value.dtype.name, dims)
    shift = b.input(value.dtype.name, dims) if b.flip() else None
    operands = [value, scale] + ([shift] if shift is not None else [])
    b.node("LayerNormalization", *operands, axis=axis)


def rms_norm(b: Builder) -> None:
    """By its operator, or by primitives as models are exported."""
    value = b.pick_float(1)
    name = value.dtype.name
    if b.opset >= 23 and b.flip():
        scale = b.input(name, [b.dim_for(value.sizes(-1))])
        b.node("RMSNormalization", value, scale)
        return
    if b.flip():
        square = b.node("Mul", value, value)
    else:
        square = b.node("Pow", value, b.constant(2.0, name))
    mean = b.node("ReduceMean", square, b.integers(-1), keepdims=1)
    root = b.node("Sqrt", b.node("Add", mean, b.constant(1e-3, name)))
    if b.flip():
        b.node("Div", value, root)
    else:
        b.node("Mul", b.node("Reciprocal", root), value)


def layer_norm_of_primitives(b: Builder) -> None:
    value = b.pick_float(1)
    name = value.dtype.name
    mean = b.node("ReduceMean", value, b.integers(-1), keepdims=1)
    centred = b.node("Sub", value, mean)
    square = b.node("Mul", centred, centred)
    variance = b.node("ReduceMean", square, b.integers(-1), keepdims=1)
    root = b.node("Sqrt", b.node("Add", variance, b.constant(1e-3, name)))
    b.node("Div", centred, root)


def channel_norm(b: Builder) -> None:
    """Normalisations of channels: instance, group, batch."""
    value = b.pick_float(3, 4)
    name = value.dtype.name
    channels = b.dim_for(value.sizes(1))
    kind = b.chance.randrange(3)
    if kind == 0:
        b.node("InstanceNormalization", value, b.input(name, [channels]), b.input(name, [channels]))
    elif kind == 1:
        groups = b.chance.choice((1, 2, 3))
        if b.opset < 21 or any(s % groups for s in value.sizes(1) if s >= 0):
            raise Rejected("no groups")
        vectors = b.input(name, [channels]), b.input(name, [channels])
        b.node("GroupNormalization", value, *vectors, num_groups=groups)
    else:
        moved = [b.input(name, [channels], low, 1.0) for low in (0.0, 0.0, 0.0, 0.5)]
        b.node("BatchNormalization", value, *moved)


def other_norm(b: Builder) -> None:
    value = b.pick_float(1, 4)
    if value.rank == 4 and b.flip():
        if b.flip():
            b.node("MeanVarianceNormalization", value)
        else:
            b.node("LRN", value, size=3, alpha=0.1)
        return
    b.node("LpNormalization", value, axis=b.axis(value), p=b.chance.choice((1, 2)))


def attention(b: Builder) -> None:
    """Scores of queries and keys, an optional mask, a softmax, and a sum of values."""
    queries = b.pick_float(2, 4)
    name = queries.dtype.name
    width = b.dim_for(queries.sizes(-1))
    batch = [b.dim_for(queries.sizes(a)) for a in range(queries.rank - 2)]
    length = b.chance.choice([*b.shapes[0]])
    shared = b.flip(0.3)
    keys = queries if shared else b.input(name, [*batch, length, width])
    order = list(range(keys.rank))
    order[-1], order[-2] = order[-2], order[-1]
    scores = b.node("MatMul", queries, b.node("Transpose", keys, perm=order))
    scores = b.node("Mul", scores, b.constant(0.5, name))
    if b.flip(0.3):
        rows = b.dim_for(queries.sizes(-2))
        scores = b.node("Add", scores, b.input(name, [rows, rows if shared else length]))
    weights = b.node("Softmax", scores, axis=-1)
    b.node("MatMul", weights, keys)


STEPS = {
    reduce: 14,
    arg_reduce: 2,
    own_transpose: 4,
    matmul: 8,
    gemm: 2,
    einsum: 3,
    softmax: 4,
    layer_norm: 2,
    rms_norm: 2,
    layer_norm_of_primitives: 2,
    channel_norm: 2,
    other_norm: 1,
    attention: 2,
}
