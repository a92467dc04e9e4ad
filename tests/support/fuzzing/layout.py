"""Steps that move data: reshapes by computed shapes, slices, joins, pads, indices from data."""

from __future__ import annotations

import math

import numpy as np

from .builder import Builder, Rejected, Value


def transpose(b: Builder) -> None:
    value = b.pick(lambda v: v.rank >= 2)
    order = list(range(value.rank))
    b.chance.shuffle(order)
    b.node("Transpose", value, **({} if b.flip(0.2) else {"perm": order}))


def reshape(b: Builder) -> None:
    """To a shape of copied (0), inferred (-1), constant and computed sizes."""
    value = b.pick(lambda v: v.rank >= 1)
    parts: list[Value | int] = []
    allow_zero = b.flip(0.15)
    axis, inferred = 0, False
    while axis < value.rank:
        kind = b.chance.randrange(7)
        last = axis == value.rank - 1
        if kind == 0 and not inferred:
            parts.append(-1)
            inferred = True
            axis += b.chance.randrange(1, value.rank - axis + 1)
        elif kind == 1 and not last:  # two axes become one, by a computed product
            first, second = b.size(value, axis), b.size(value, axis + 1)
            parts.append(b.node("Mul", first, second))
            axis += 2
        elif kind == 2 and value.is_static(axis):
            parts += _factors(b, value.first.shape[axis])
            axis += 1
        elif kind == 3 and not allow_zero and len(parts) == axis:
            parts.append(0)
            axis += 1
        elif kind == 4 and b.flip(0.5):
            parts.append(1)
        elif kind == 5:  # one axis becomes two, by a computed quotient
            parts += _divided(b, value, axis)
            axis += 1
        else:
            parts.append(b.size(value, axis))
            axis += 1
    b.node("Reshape", value, _joined(b, parts), **({"allowzero": 1} if allow_zero else {}))


def _factors(b: Builder, size: int) -> list[Value | int]:
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    if not divisors:
        return [size]
    divisor = b.chance.choice(divisors)
    return [divisor, size // divisor]


def _divided(b: Builder, value: Value, axis: int) -> list[Value | int]:
    common = math.gcd(*(size for size in value.sizes(axis) if size >= 0))
    divisors = [d for d in range(2, min(common, 12) + 1) if common % d == 0]
    if not divisors:
        return [b.size(value, axis)]
    divisor = b.chance.choice(divisors)
    quotient = b.node("Div", b.size(value, axis), b.integers(divisor))
    return [quotient, divisor] if b.flip() else [divisor, quotient]


def _joined(b: Builder, parts: list[Value | int]) -> Value:
    """A vector of sizes: a constant, or constants and computed ones joined."""
    if all(isinstance(part, int) for part in parts):
        return b.integers(*(part for part in parts if isinstance(part, int)))
    vectors = [b.integers(p) if isinstance(p, int) else p for p in parts]
    return b.node("Concat", *vectors, axis=0) if len(vectors) > 1 else vectors[0]


def reshape_like(b: Builder) -> None:
    """To the shape of another value of as many elements."""
    value = b.pick()
    counts = [None if a is None else a.size for a in value.arrays]
    like = b.pick(lambda v: [None if a is None else a.size for a in v.arrays] == counts)
    b.node("Reshape", value, b.node("Shape", like))


def flatten(b: Builder) -> None:
    value = b.pick(lambda v: v.rank >= 1)
    b.node("Flatten", value, axis=b.chance.randrange(-value.rank, value.rank + 1))


def squeeze(b: Builder) -> None:
    value = b.pick(lambda v: any(set(v.sizes(a)) <= {1, -1} for a in range(v.rank)))
    axes = [a for a in range(value.rank) if set(value.sizes(a)) <= {1, -1}]
    chosen = b.chance.choice(axes) - (value.rank if b.flip() else 0)
    b.node("Squeeze", value, b.integers(chosen))


def unsqueeze(b: Builder) -> None:
    value = b.pick(lambda v: v.rank <= 3)
    axes = b.chance.sample(range(value.rank + 1), b.chance.choice((1, 1, 2)) if value.rank else 1)
    b.node("Unsqueeze", value, b.integers(*axes))


def expand(b: Builder) -> None:
    value = b.pick(lambda v: v.rank <= 3)
    if b.flip():
        other = b.partner(value, "float32")
        b.node("Expand", value, b.node("Shape", other))
        return
    parts: list[Value | int] = []
    for axis in range(value.rank):
        is_one = set(value.sizes(axis)) <= {1, -1}
        parts.append(_any_size(b) if is_one and b.flip() else 1)
    if b.flip(0.4) or not parts:
        parts.insert(0, _any_size(b))
    b.node("Expand", value, _joined(b, parts))


def _any_size(b: Builder) -> Value | int:
    if b.flip(0.3):
        return b.chance.choice((1, 2, 3))
    value = b.pick(lambda v: v.rank >= 1)
    return b.size(value, b.chance.randrange(value.rank))


def tile(b: Builder) -> None:
    value = b.pick(lambda v: 1 <= v.rank <= 3)
    parts = [b.chance.choice((1, 2, 3)) for _ in range(value.rank)]
    mixed: list[Value | int] = [_any_size(b) if b.flip(0.15) else part for part in parts]
    b.node("Tile", value, _joined(b, mixed))


def concat(b: Builder) -> None:
    value = b.pick(lambda v: v.rank >= 1)
    axis = b.axis(value)
    found = [v for v in b.values if v.dtype == value.dtype and _agree(v, value, axis)]
    parts = [value, b.chance.choice(found)]
    if b.flip(0.3):
        parts.append(b.chance.choice(found))
    b.chance.shuffle(parts)
    b.node("Concat", *parts, axis=axis)


def _agree(one: Value, other: Value, axis: int) -> bool:
    if one.rank != other.rank:
        return False
    others = [a for a in range(one.rank) if a != axis % one.rank]
    return all(one.sizes(a) == other.sizes(a) for a in others)


def split(b: Builder) -> None:
    value = b.pick(lambda v: v.rank >= 1)
    axis = b.axis(value)
    if value.is_static(axis) and value.smallest(axis) >= 2:
        size = value.smallest(axis)
        at = b.chance.randrange(0, size + 1)
        b.nodes_of("Split", 2, value, b.integers(at, size - at), axis=axis)
        return
    if b.flip() and value.smallest(axis) >= 1:  # the first and the rest
        size = b.size(value, axis)
        rest = b.node("Sub", size, b.integers(1))
        b.nodes_of("Split", 2, value, b.node("Concat", b.integers(1), rest, axis=0), axis=axis)
        return
    count = b.chance.choice((2, 3))
    b.nodes_of("Split", count, value, axis=axis, num_outputs=count)


BOUNDS = (0, 1, 2, 3, -1, -2, -3, 100, -100, 2**63 - 1, -(2**63), 2**31 - 1)


def slices(b: Builder) -> None:
    value = b.pick(lambda v: v.rank >= 1)
    axes = b.chance.sample(range(value.rank), b.chance.randrange(1, min(value.rank, 2) + 1))
    steps = [b.chance.choice((1, 1, 2, 3, -1, -1, -2, -3)) for _ in axes]
    starts: list[Value | int] = [_bound(b, value) for _ in axes]
    ends: list[Value | int] = [_bound(b, value) for _ in axes]
    for k, step in enumerate(steps):
        if b.flip(0.6):  # the whole axis, forwards or back
            starts[k], ends[k] = (0, 2**63 - 1) if step > 0 else (-1, -(2**63))
            if b.flip(0.4):
                starts[k] = b.chance.choice((1, -2, 2))
    named = [a - value.rank if b.flip(0.3) else a for a in axes]
    operands: list[Value] = [_joined(b, starts), _joined(b, ends)]
    if named != list(range(len(axes))) or any(s != 1 for s in steps) or b.flip():
        operands.append(b.integers(*named))
    if any(s != 1 for s in steps) or (b.flip(0.3) and len(operands) == 3):
        operands.append(b.integers(*steps))
    b.node("Slice", value, *operands)


def _bound(b: Builder, value: Value) -> Value | int:
    """The start or end of a slice: any number, or one computed from a size."""
    if b.flip(0.3):
        size = b.size(value, b.chance.randrange(value.rank))
        kind = b.chance.randrange(4)
        if kind == 0:
            return b.node("Sub", size, b.integers(b.chance.choice((1, 2))))
        if kind == 1:
            return b.node("Div", size, b.integers(2))
        return b.node("Neg", size) if kind == 2 else size
    return b.chance.choice(BOUNDS)


def pad(b: Builder) -> None:
    value = b.pick(lambda v: 1 <= v.rank <= 4 and (v.is_float or v.is_integer))
    mode = b.chance.choice(("constant", "constant", "reflect", "edge", "wrap"))
    if mode == "wrap" and b.opset < 19:
        mode = "edge"
    amounts = (0, 0, 1, 2, 3, -1) if mode == "constant" else (0, 0, 1, 2)
    axes = list(range(value.rank))
    named = b.flip(0.4)
    if named:
        axes = b.chance.sample(axes, b.chance.randrange(1, value.rank + 1))
    pads: list[Value | int] = [b.chance.choice(amounts) for _ in range(2 * len(axes))]
    if b.flip(0.2):
        pads[b.chance.randrange(len(pads))] = _any_size(b)
    operands: list[Value | None] = [value, _joined(b, pads), None, None]
    if mode == "constant" and b.flip():
        operands[2] = b.constant(b.chance.choice((0, 1, -2)), value.dtype.name)
    if named:
        operands[3] = b.integers(*(a - value.rank if b.flip(0.3) else a for a in axes))
    while operands[-1] is None:
        operands.pop()
    b.node("Pad", *operands, mode=mode)


def gather(b: Builder) -> None:
    value = b.pick(lambda v: v.rank >= 1)
    axis = b.axis(value)
    size = value.smallest(axis)
    b.node("Gather", value, _indices(b, size), axis=axis)


def _indices(b: Builder, size: int) -> Value:
    """Indices that lie within the smallest size at any shape, of both signs; an axis of size 0
    anywhere needs an index that may be empty there."""
    dtype = b.chance.choice(("int64", "int64", "int32"))
    if size and b.flip():
        shape = b.chance.choice(((), (1,), (2,), (3,), (2, 2), (0,)))
        data = np.array([b.chance.randrange(-size, size) for _ in range(math.prod(shape))])
        return b.constant(data.reshape(shape).astype(dtype))
    names = [*b.shapes[0]]
    if not size:
        names = [n for n in names if any(s[n] == 0 for s in b.shapes)]
        size = 1
    if not names:
        raise Rejected("no index fits")
    dims = b.chance.sample(names, 1)
    if b.flip(0.3):
        dims.append(b.chance.choice([*b.shapes[0]]))
    return b.input(dtype, dims, -size, size - 1)


def gather_elements(b: Builder) -> None:
    value = b.pick(lambda v: v.rank >= 1)
    axis = b.axis(value)
    size = max(value.smallest(axis), 1)
    dims = [b.dim_for(value.sizes(a)) for a in range(value.rank)]
    dims[axis] = b.chance.choice([*b.shapes[0], 1, 2])
    b.node("GatherElements", value, b.input("int64", dims, -size, size - 1), axis=axis)


def gather_nd(b: Builder) -> None:
    value = b.pick(lambda v: v.rank >= 2)
    size = max(min(value.smallest(0), value.smallest(1)), 1)
    dims = [b.chance.choice([*b.shapes[0]]), b.chance.choice((1, 2))]
    b.node("GatherND", value, b.input("int64", dims, -size, size - 1))


def scatter(b: Builder) -> None:
    value = b.pick(lambda v: v.rank >= 1 and v.smallest(0) >= 1)
    size = value.smallest(0)
    count = b.chance.randrange(1, min(size, 3) + 1)
    rows = b.chance.sample(range(size), count)
    reduction = b.chance.choice(("none", "none", "add", "max"))
    tail = [b.dim_for(value.sizes(a)) for a in range(1, value.rank)]
    updates = b.input(value.dtype.name, [count, *tail], 0.0 if value.is_float else -3, 1.0)
    if b.flip():
        at = b.constant(np.array(rows, np.int64).reshape(-1, 1))
        b.node("ScatterND", value, at, updates, reduction=reduction)
        return
    at = b.constant(np.array(rows, np.int64).reshape(-1, *[1] * (value.rank - 1)))
    spread = b.node("Expand", at, b.node("Shape", updates))
    b.node("ScatterElements", value, spread, updates, axis=0, reduction=reduction)


def cumulate(b: Builder) -> None:
    value = b.pick(
        lambda v: v.rank >= 1 and v.dtype.name in ("float32", "float64", "int64", "int32")
    )
    axis = b.constant(b.axis(value), b.chance.choice(("int64", "int32")))
    b.node("CumSum", value, axis, exclusive=int(b.flip(0.3)), reverse=int(b.flip(0.3)))


def triangle(b: Builder) -> None:
    value = b.pick(lambda v: v.rank >= 2)
    offset = b.constant(b.chance.choice((-1, 0, 1, 2)), "int64")
    b.node("Trilu", value, offset if b.flip() else None, upper=int(b.flip()))


def depth_to_space(b: Builder) -> None:
    value = b.pick(lambda v: v.rank == 4 and v.dtype == np.float32)
    if b.flip():
        mode = b.chance.choice(("DCR", "CRD"))
        b.node("DepthToSpace", value, blocksize=2, mode=mode)
    else:
        b.node("SpaceToDepth", value, blocksize=b.chance.choice((2, 3)))


def top_k(b: Builder) -> None:
    value = b.pick(lambda v: v.rank >= 1 and v.is_float)
    axis = b.axis(value)
    count = b.integers(b.chance.randrange(0, value.smallest(axis) + 1))
    if b.flip(0.4):
        count = b.size(value, axis)
    b.nodes_of("TopK", 2, value, count, axis=axis, largest=int(b.flip()))


def one_hot(b: Builder) -> None:
    value = b.pick(lambda v: v.dtype == np.int64 and v.rank <= 2)
    depth = b.constant(b.chance.choice((1, 3, 5)), "int64")
    b.node("OneHot", value, depth, b.constant([0, 1], "float32"), axis=b.chance.choice((-1, 0)))


STEPS = {
    transpose: 6,
    reshape: 8,
    reshape_like: 1,
    flatten: 1,
    squeeze: 1,
    unsqueeze: 3,
    expand: 4,
    tile: 2,
    concat: 4,
    split: 3,
    slices: 6,
    pad: 4,
    gather: 4,
    gather_elements: 1,
    gather_nd: 1,
    scatter: 2,
    cumulate: 3,
    triangle: 1,
    depth_to_space: 1,
    top_k: 1,
    one_hot: 1,
}
