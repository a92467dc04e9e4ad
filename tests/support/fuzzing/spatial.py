"""Steps on images: convolution, pooling, resizing. They make an image where none is there."""

from __future__ import annotations

from .builder import Builder, Rejected, Value


def image(b: Builder, least_rank: int = 3, most_rank: int = 4) -> Value:
    """A value of batch, channels and space, or a new input of such sizes."""
    found = [v for v in b.values if v.is_float and least_rank <= v.rank <= most_rank]
    if found and b.flip(0.75):
        return b.chance.choice(found)
    rank = b.chance.choice([r for r in (3, 4, 4, 4) if least_rank <= r <= most_rank])
    channels = b.chance.choice((1, 2, 4, 8, b.chance.choice([*b.shapes[0]])))
    space = [b.chance.choice([*b.shapes[0]]) for _ in range(rank - 2)]
    return b.input("float32", [b.chance.choice([*b.shapes[0], 1]), channels, *space])


def _window(b: Builder, rank: int, *, dilations: bool = True) -> dict[str, object]:
    """Kernel, strides, dilations and padding of a sliding window."""
    kernel = [b.chance.choice((1, 2, 3, 3)) for _ in range(rank)]
    found: dict[str, object] = {"kernel_shape": kernel}
    if b.flip():
        found["strides"] = [b.chance.choice((1, 2, 3)) for _ in range(rank)]
    if dilations and b.flip(0.3):
        found["dilations"] = [b.chance.choice((1, 2)) for _ in range(rank)]
    kind = b.chance.randrange(4)
    if kind == 0:
        pads = [b.chance.randrange(size) for size in kernel]
        found["pads"] = pads + [b.chance.randrange(size) for size in kernel]
    elif kind == 1:
        found["pads"] = [size // 2 for size in kernel] * 2
    elif kind == 2 and "dilations" not in found and b.flip():
        found["auto_pad"] = b.chance.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    return found


def convolution(b: Builder) -> None:
    value = image(b)
    space = value.rank - 2
    window = _window(b, space)
    kernel = window["kernel_shape"]
    assert isinstance(kernel, list)
    name = value.dtype.name
    if value.is_static(1) and b.flip(0.8):
        channels = value.smallest(1)
        groups = b.chance.choice([g for g in (1, 1, 2, channels) if g and channels % g == 0] or [0])
        if not groups:
            raise Rejected("no channels")
        outputs = groups * b.chance.choice((1, 2, 4, 5))
        weights = (
            b.weights(outputs, channels // groups, *kernel, dtype=name)
            if b.flip(0.7)
            else b.input(name, [outputs, channels // groups, *kernel])
        )
        bias = b.weights(outputs, dtype=name) if b.flip() else None
    else:
        groups = 1
        outputs = b.chance.choice([*b.shapes[0], 2, 5])
        weights = b.input(name, [outputs, b.dim_for(value.sizes(1)), *kernel])
        bias = b.input(name, [outputs]) if b.flip(0.3) else None
    operands = [value, weights] + ([bias] if bias is not None else [])
    b.node("Conv", *operands, group=groups, **window)


def transposed_convolution(b: Builder) -> None:
    value = image(b)
    if not value.is_static(1) or not value.smallest(1):
        raise Rejected("channels are not known")
    channels = value.smallest(1)
    kernel = [b.chance.choice((1, 2, 3)) for _ in range(value.rank - 2)]
    groups = b.chance.choice([g for g in (1, 1, 2) if channels % g == 0])
    weights = b.weights(channels, b.chance.choice((1, 2, 3)), *kernel, dtype=value.dtype.name)
    attributes: dict[str, object] = {"group": groups}
    if b.flip():
        attributes["strides"] = [b.chance.choice((1, 2)) for _ in kernel]
    if b.flip(0.3):
        attributes["pads"] = [b.chance.randrange(2) for _ in kernel] * 2
    b.node("ConvTranspose", value, weights, **attributes)


def pooling(b: Builder) -> None:
    value = image(b)
    operator = b.chance.choice(("MaxPool", "AveragePool", "LpPool"))
    window = _window(b, value.rank - 2, dilations=operator == "MaxPool" or b.opset >= 19)
    if b.flip(0.3) and "auto_pad" not in window and operator != "LpPool":
        window["ceil_mode"] = 1
    if operator == "AveragePool" and b.flip():
        window["count_include_pad"] = 1
    if operator == "MaxPool" and b.flip(0.2):
        b.nodes_of("MaxPool", 2, value, **window)
    else:
        b.node(operator, value, **window)


def global_pooling(b: Builder) -> None:
    b.node(b.chance.choice(("GlobalAveragePool", "GlobalMaxPool")), image(b))


def resize(b: Builder) -> None:
    value = image(b)
    mode = b.chance.choice(("nearest", "nearest", "linear", "linear", "cubic"))
    attributes: dict[str, object] = {"mode": mode}
    places = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    attributes["coordinate_transformation_mode"] = b.chance.choice(places)
    if mode == "nearest":
        rounding = ("round_prefer_floor", "floor", "ceil", "round_prefer_ceil")
        attributes["nearest_mode"] = b.chance.choice(rounding)
    space = value.rank - 2
    if b.flip():
        scales = [b.chance.choice((0.5, 1.0, 1.5, 2.0, 3.0)) for _ in range(space)]
        b.node("Resize", value, None, b.constant([1.0, 1.0, *scales], "float32"), **attributes)
        return
    sizes = [b.size(value, axis) for axis in (0, 1)]
    for axis in range(2, value.rank):
        kind = b.chance.randrange(3)
        size = b.size(value, axis)
        if kind == 0:
            size = b.node("Mul", size, b.integers(2))
        elif kind == 1:
            other = b.pick(lambda v: v.rank >= 1)
            size = b.size(other, b.chance.randrange(other.rank))
        sizes.append(size)
    b.node("Resize", value, None, None, b.node("Concat", *sizes, axis=0), **attributes)


STEPS = {convolution: 5, transposed_convolution: 1, pooling: 4, global_pooling: 1, resize: 3}
