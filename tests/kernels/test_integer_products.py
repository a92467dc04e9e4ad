"""Products of quantised tensors, compiled, beside sums in int64: at every level, at the ends."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tilewright
from tilewright.backend.cpu.machine import host_levels
from tilewright.compile import compile_stages
from tilewright.ir.dtype import DType
from tilewright.ir.primitives import Convolve
from tilewright.plan.seeds import has_tiles

pytestmark = pytest.mark.sampled(9)

Array = np.ndarray[Any, Any]
LEVELS = tuple(level.name for level in host_levels() if level.serves("uint8"))
KINDS: dict[str, Any] = {"u": np.uint8, "s": np.int8}
ENDS = {"u": (0, 255), "s": (-128, 127)}


class Model:
    """An ONNX model of several nodes that share inputs, every result being an output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.weights: list[onnx.TensorProto] = []

    def input(self, name: str, kind: Any, *shape: int | str) -> str:
        self.inputs.append(_info(name, kind, shape))
        return name

    def weight(self, array: Array) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, operator: str, *operands: str, **attributes: Any) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, operands, [name], **attributes))
        return name

    def output(self, name: str, kind: Any, rank: int) -> None:
        self.outputs.append(_info(name, kind, [f"{name}_{axis}" for axis in range(rank)]))

    def proto(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "test", self.inputs, self.outputs, initializer=self.weights
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])

    def compiled(self, level: str, **options: Any) -> tilewright.CompiledModel:
        return tilewright.compile(self.proto(), levels=[level], **options)


def _info(name: str, kind: Any, shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape
    )


def _bytes(chance: np.random.Generator, kind: str, *shape: int) -> Array:
    """Random bytes, half of them at the ends of the type."""
    low, high = ENDS[kind]
    inner = chance.integers(low, high + 1, shape)
    ends = chance.choice([low, high], shape)
    return np.where(chance.random(shape) < 0.5, inner, ends).astype(KINDS[kind])


def _wrapped(sums: Array) -> Array:
    return sums.astype(np.int64).astype(np.int32)


# ---------------------------------------------------------------- products


CASES = [
    # data, weights, depth, columns, zero point of the data, of the weights
    ("u", "s", 64, 33, "one", None),
    ("u", "s", 7, 5, "end", "end"),
    ("s", "s", 36, 16, "end", "each"),
    ("s", "u", 130, 17, "one", "end"),
    ("u", "u", 1, 1, None, "each"),
    ("u", "u", 263, 3, "rows", "one"),
    ("s", "u", 12, 130, None, None),
]


def _zero(chance: np.random.Generator, kind: str, which: str | None, columns: int) -> Array | None:
    low, high = ENDS[kind]
    if which is None:
        return None
    if which == "each":
        return _bytes(chance, kind, columns)
    return np.array(high if which == "end" else (low + 37), KINDS[kind])


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_products_by_constants_are_exact(level: str) -> None:
    chance = np.random.default_rng(5)
    model, wanted = Model(), list[tuple[str, Array, Any, Any]]()
    for number, (a, b, depth, columns, za, zb) in enumerate(CASES):
        x = model.input(f"x{number}", KINDS[a], "m", depth)
        weights = _bytes(chance, b, depth, columns)
        weight_zero = _zero(chance, b, zb, columns)
        data_zero = "" if za is None else model.input(f"z{number}", KINDS[a], *_rows(za))
        second = "" if weight_zero is None else model.weight(weight_zero)
        name = model.add("MatMulInteger", x, model.weight(weights), data_zero, second)
        model.output(name, np.int32, 2)
        wanted.append((name, weights, weight_zero, za))
    compiled = model.compiled(level)
    for rows in (0, 1, 2, 5, 7, 97):
        given: dict[str, Array] = {}
        expected: dict[str, Array] = {}
        for number, (name, weights, weight_zero, za) in enumerate(wanted):
            kind, depth = CASES[number][0], weights.shape[0]
            x = given[f"x{number}"] = _bytes(chance, kind, rows, depth)
            zero: Any = 0
            if za is not None:
                zero = _bytes(chance, kind, rows) if za == "rows" else _zero(chance, kind, za, 1)
                given[f"z{number}"] = zero
                zero = np.asarray(zero, np.int64)
                zero = zero[:, None] if za == "rows" else zero
            other = 0 if weight_zero is None else weight_zero.astype(np.int64)
            expected[name] = _wrapped((x.astype(np.int64) - zero) @ (weights - other))
        for name, got in compiled.run(given).items():
            np.testing.assert_array_equal(got, expected[name], name)


def _rows(which: str) -> list[str]:
    return ["m"] if which == "rows" else []


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("a", "b"), list(product("us", repeat=2)))
def test_products_of_two_inputs_are_exact(a: str, b: str, level: str) -> None:
    chance = np.random.default_rng(7)
    model = Model()
    x, y = model.input("x", KINDS[a], "h", "m", "k"), model.input("y", KINDS[b], "h", "k", "n")
    p, q = model.input("p", KINDS[a]), model.input("q", KINDS[b])
    model.output(model.add("MatMulInteger", x, y, p, q), np.int32, 3)
    few = model.input("few", KINDS[a], "m", 64), model.input("others", KINDS[b], 64, "n")
    model.output(model.add("MatMulInteger", *few), np.int32, 2)
    compiled = model.compiled(level)
    shapes = ((2, 3, 5, 7), (1, 17, 300, 1), (3, 0, 4, 2), (1, 2, 0, 2), (2, 29, 1601, 131))
    for heads, rows, depth, columns in shapes:
        given = {
            "x": _bytes(chance, a, heads, rows, depth),
            "y": _bytes(chance, b, heads, depth, columns),
            "p": np.array(ENDS[a][1], KINDS[a]),
            "q": np.array(ENDS[b][0], KINDS[b]),
            "few": _bytes(chance, a, rows, 64),
            "others": _bytes(chance, b, 64, columns),
        }
        wide = {name: array.astype(np.int64) for name, array in given.items()}
        first, second = compiled.run(given).values()
        expected = (wide["x"] - wide["p"]) @ (wide["y"] - wide["q"])
        np.testing.assert_array_equal(first, _wrapped(expected))
        np.testing.assert_array_equal(second, wide["few"] @ wide["others"])


@pytest.mark.slow
def test_sums_beyond_the_range_wrap_around() -> None:
    """As every way to add integers does; the depth is more than exact floats would allow."""
    depth = 70_000
    model = Model()
    x = model.input("x", np.uint8, "m", depth)
    weights = np.full((depth, 2), -128, np.int8)
    model.output(model.add("MatMulInteger", x, model.weight(weights)), np.int32, 2)
    y = model.input("y", np.int8, "k", 2)
    z = model.input("z", np.uint8, "m", "k")
    model.output(model.add("MatMulInteger", z, y), np.int32, 2)
    full = np.full((3, depth), 255, np.uint8)
    compiled = model.compiled(LEVELS[-1], dims={"k": (0, 100_000)})
    first, second = compiled(x=full, y=weights, z=full)
    expected = _wrapped(np.full((3, 2), -255 * 128 * depth, np.int64))
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(second, expected)


def test_data_that_lies_among_others() -> None:
    """Its rows begin between words, or its depth is not the last axis: it is copied."""
    chance = np.random.default_rng(3)
    model = Model()
    x = model.input("x", np.uint8, "m", 30)
    ends = [model.weight(np.array([value], np.int64)) for value in (3, 23, 1)]
    cut = model.add("Slice", x, *ends)
    turned = model.add("Transpose", model.input("y", np.uint8, 20, "m"), perm=[1, 0])
    weights = _bytes(chance, "s", 20, 18)
    for data in (cut, turned):
        model.output(model.add("MatMulInteger", data, model.weight(weights)), np.int32, 2)
    given = {"x": _bytes(chance, "u", 7, 30), "y": _bytes(chance, "u", 20, 7)}
    first, second = model.compiled(LEVELS[-1])(**given)
    wide = weights.astype(np.int64)
    np.testing.assert_array_equal(first, given["x"][:, 3:23] @ wide)
    np.testing.assert_array_equal(second, given["y"].T @ wide)


# ---------------------------------------------------------------- convolutions


def _convolved(x: Array, w: Array, stride: int, pad: int, groups: int = 1) -> Array:
    """[N, C, H, W] by [O, C / groups, k, k] in int64."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    k = w.shape[2]
    windows = np.lib.stride_tricks.sliding_window_view(x, (k, k), (2, 3))[:, :, ::stride, ::stride]
    n, c, h, v = windows.shape[:4]
    split = windows.reshape(n, groups, c // groups, h, v, k, k)
    kernels = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    return np.einsum("ngchvij,gocij->ngohv", split, kernels).reshape(n, len(w), h, v)


CONVOLUTIONS = [
    # data, weights, channels, outputs, taps, stride, padding, groups
    ("u", "s", 20, 17, 3, 1, 1, 1),
    ("s", "u", 3, 16, 5, 2, 2, 1),
    ("u", "u", 22, 9, 1, 2, 0, 1),
    ("s", "s", 12, 12, 3, 1, 1, 12),
    ("u", "s", 8, 6, 3, 2, 1, 2),
    ("u", "s", 1, 4, 3, 1, 1, 1),
]


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("half", [slice(0, 3), slice(3, 6)])
def test_convolutions_are_exact(level: str, half: slice) -> None:
    cases = CONVOLUTIONS[half]
    chance = np.random.default_rng(11)
    model = Model()
    weights: list[Array] = []
    for number, (a, b, channels, outputs, taps, stride, pad, groups) in enumerate(cases):
        x = model.input(f"x{number}", KINDS[a], "n", channels, "h", "v")
        weights.append(_bytes(chance, b, outputs, channels // groups, taps, taps))
        zeros = model.input(f"z{number}", KINDS[a]), model.weight(np.array(100, KINDS[b]))
        name = model.add(
            "ConvInteger", x, model.weight(weights[-1]), *zeros, strides=[stride] * 2,
            pads=[pad] * 4, group=groups,
        )  # fmt: skip
        model.output(name, np.int32, 4)
    compiled = model.compiled(level, dims={"h": (5, 64), "v": (5, 64)})
    for batch, height, width in ((1, 5, 5), (3, 8, 19), (0, 6, 6)):
        given: dict[str, Array] = {}
        expected: list[Array] = []
        for number, (a, _, channels, *_, stride, pad, groups) in enumerate(cases):
            x = given[f"x{number}"] = _bytes(chance, a, batch, channels, height, width)
            zero = given[f"z{number}"] = np.array(ENDS[a][number % 2], KINDS[a])
            wide = x.astype(np.int64) - zero.astype(np.int64)
            whole = weights[number].astype(np.int64) - 100
            expected.append(_convolved(wide, whole, stride, pad, groups))
        got = compiled.run(given).values()
        for made, want in zip(got, expected, strict=True):
            np.testing.assert_array_equal(made, want)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("a", "b"), [("u", "u"), ("s", "s")])
def test_convolutions_by_weights_that_are_inputs_are_exact(a: str, b: str, level: str) -> None:
    chance = np.random.default_rng(13)
    model, kinds = Model(), [(20, 17, 3, 2), (6, 70, 1, 1), (8, 5, 2, 1), (2, 3, 3, 1)]
    given: dict[str, Array] = {"p": np.array(ENDS[a][1], KINDS[a]), "q": np.array(3, KINDS[b])}
    expected: list[Array] = []
    zeros = model.input("p", KINDS[a]), model.input("q", KINDS[b])
    for number, (channels, outputs, taps, stride) in enumerate(kinds):
        x, w = f"x{number}", f"w{number}"
        model.input(x, KINDS[a], "n", channels, "h", "v")
        model.input(w, KINDS[b], outputs, channels, taps, taps)
        given[x] = _bytes(chance, a, 2, channels, 6, 11)
        given[w] = _bytes(chance, b, outputs, channels, taps, taps)
        made = model.add("ConvInteger", x, w, *zeros, strides=[stride] * 2, pads=[1] * 4)
        model.output(made, np.int32, 4)
        data, weights = (given[name].astype(np.int64) for name in (x, w))
        expected.append(_convolved(data - int(given["p"]), weights - 3, stride, 1))
    got = model.compiled(level, dims={"h": (5, 64), "v": (5, 64)}).run(given).values()
    for made, want in zip(got, expected, strict=True):
        np.testing.assert_array_equal(made, want)


# ---------------------------------------------------------------- requantised


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["u", "s"])
def test_requantised_products_are_those_of_the_definition(level: str, kind: str) -> None:
    chance = np.random.default_rng(2)
    model = Model()
    scale = model.weight(np.array(0.05, np.float32))
    out_scale, zero = np.array(37.0, np.float32), np.array(3, KINDS[kind])
    y = model.weight(out_scale), model.weight(zero)
    x = model.input("x", np.uint8, "m", 40)
    weights, columns = _bytes(chance, "s", 40, 24), np.linspace(0.1, 2, 24).astype(np.float32)
    points = model.weight(np.zeros(24, np.int8))
    data_zero = model.weight(np.array(120, np.uint8))
    operands = (x, scale, data_zero, model.weight(weights), model.weight(columns), points)
    model.output(model.add("QLinearMatMul", *operands, *y), KINDS[kind], 2)
    image = model.input("image", np.uint8, "n", 20, "h", "h")
    filters = _bytes(chance, "s", 24, 20, 3, 3)
    bias = chance.integers(-9999, 9999, 24).astype(np.int32)
    operands = (image, scale, data_zero, model.weight(filters), model.weight(columns), points)
    convolved = model.add("QLinearConv", *operands, *y, model.weight(bias), pads=[1] * 4)
    model.output(convolved, KINDS[kind], 4)
    compiled = model.compiled(level, dims={"h": (3, 64)})
    given = {"x": _bytes(chance, "u", 9, 40), "image": _bytes(chance, "u", 2, 20, 5, 5)}
    first, second = compiled(**given)
    centred = {name: array.astype(np.int64) - 120 for name, array in given.items()}
    sums = centred["x"] @ weights.astype(np.int64)
    images = _convolved(centred["image"], filters.astype(np.int64), 1, 1)
    images += bias[:, None, None]
    limits = np.iinfo(KINDS[kind])
    for got, exact, factor in (
        (first, sums, columns), (second, images, columns[:, None, None])
    ):  # fmt: skip
        whole = np.rint(exact * (np.float64(0.05) * factor / out_scale)) + int(zero)
        expected = np.clip(whole, limits.min, limits.max)
        # A tie that float32 does not see may go the other way.
        apart = np.abs(got.astype(np.int64) - expected)
        assert apart.max() <= 1 and (apart != 0).mean() < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_dequantised_products_are_exact_up_to_the_scale(level: str) -> None:
    """All sums are of integers: what is rounded is one conversion and one or two scales."""
    chance = np.random.default_rng(9)
    model = Model()
    zero, scale = model.weight(np.array(7, np.int8)), model.weight(np.array(0.02, np.float32))
    factors = np.linspace(0.01, 0.5, 18).astype(np.float32)
    by_column = model.weight(factors)
    x = model.add("DequantizeLinear", model.input("x", np.int8, "b", "m", 50), scale, zero)
    weights = _bytes(chance, "s", 50, 18)
    right = model.add("DequantizeLinear", model.weight(weights), by_column, axis=1)
    model.output(model.add("MatMul", x, right), np.float32, 3)
    flat = model.add("DequantizeLinear", model.input("flat", np.int8, "m", 50), scale, zero)
    turned = model.add("DequantizeLinear", model.weight(weights.T.copy()), by_column, axis=0)
    added = model.weight(chance.standard_normal(18).astype(np.float32) * 0)
    model.output(model.add("Gemm", flat, turned, added, transB=1), np.float32, 2)
    image = model.add("DequantizeLinear", model.input("i", np.int8, "n", 20, "h", 9), scale, zero)
    filters = _bytes(chance, "s", 18, 20, 3, 3)
    kernels = model.add("DequantizeLinear", model.weight(filters), by_column, axis=0)
    model.output(model.add("Conv", image, kernels, pads=[1] * 4), np.float32, 4)
    depthwise = _bytes(chance, "s", 20, 1, 3, 3)
    number = model.weight(np.array(0.3, np.float32))
    lines = model.add("DequantizeLinear", model.weight(depthwise), number)
    model.output(model.add("Conv", image, lines, pads=[1] * 4, group=20), np.float32, 4)
    compiled = model.compiled(level, dims={"h": (3, 64)})
    given = {
        "x": _bytes(chance, "s", 2, 9, 50),
        "flat": _bytes(chance, "s", 9, 50),
        "i": _bytes(chance, "s", 2, 20, 6, 9),
    }
    centred = {name: array.astype(np.int64) - 7 for name, array in given.items()}
    wide, step = weights.astype(np.int64), np.float64(np.float32(0.02))
    expected = (
        centred["x"] @ wide * (factors * step),
        centred["flat"] @ wide * (factors * step),
        _convolved(centred["i"], filters.astype(np.int64), 1, 1) * (factors * step)[:, None, None],
        _convolved(centred["i"], depthwise.astype(np.int64), 1, 1, 20) * (np.float32(0.3) * step),
    )
    for got, want in zip(compiled(**given), expected, strict=True):
        bound = np.maximum(np.abs(want), np.abs(want).max() * 2.0**-3)
        assert (np.abs(got - want) <= 2.0**-21 * bound).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["u", "s"])
def test_a_whole_chain_of_quantised_layers(level: str, kind: str) -> None:
    """Requantised sums are not divided; what they give is what a division would, but for ties."""
    chance = np.random.default_rng(4)
    model = Model()
    one = model.weight(np.array(0.11, np.float32)), model.weight(np.array(5, KINDS[kind]))
    x = model.add("QuantizeLinear", model.input("x", np.float32, "m", 30), *one)
    weights = chance.integers(-127, 128, (30, 20)).astype(np.int8)
    by = model.weight(np.array(0.013, np.float32))
    right = model.add("DequantizeLinear", model.weight(weights), by)
    sums = model.add("MatMul", model.add("DequantizeLinear", x, *one), right)
    bias = chance.standard_normal(20).astype(np.float32)
    made = model.add("Relu", model.add("Add", sums, model.weight(bias)))
    model.output(model.add("QuantizeLinear", made, *one), KINDS[kind], 2)
    given = chance.standard_normal((33, 30)).astype(np.float32) * 3
    given[0], given[1], given[2] = np.inf, -np.inf, 1e30
    (got,) = model.compiled(level).run({"x": given}).values()
    limits = np.iinfo(KINDS[kind])
    bytes_ = np.clip(np.rint(given / np.float32(0.11)) + 5, limits.min, limits.max)
    exact = (bytes_.astype(np.float64) - 5) * np.float64(np.float32(0.11))
    exact = np.maximum(exact @ (weights * np.float64(np.float32(0.013))) + bias, 0)
    want = np.clip(np.rint(exact / np.float64(np.float32(0.11))) + 5, limits.min, limits.max)
    apart = np.abs(got.astype(np.int64) - want)
    assert apart.max() <= 1 and (apart != 0).mean() < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_data_quantised_by_its_own_range(level: str) -> None:
    """The chain that tools make of a dense layer: every integer of it is exact."""
    chance = np.random.default_rng(6)
    model = Model()
    model.input("x", np.float32, "b", "m", 36)
    parts = ["data", "scale", "zero"]
    model.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], parts))
    weights = _bytes(chance, "s", 36, 20)
    second = model.weight(np.array(3, np.int8))
    model.output(
        model.add("MatMulInteger", "data", model.weight(weights), "zero", second), np.int32, 3
    )
    for name, kind, rank in (
        ("data", np.uint8, 3),
        ("scale", np.float32, 0),
        ("zero", np.uint8, 0),
    ):
        model.output(name, kind, rank)
    compiled = model.compiled(level)
    for batch, rows in ((1, 1), (2, 7), (5, 13)):
        x = chance.standard_normal((batch, rows, 36)).astype(np.float32) * 3 + batch
        sums, data, scale, zero = compiled(x=x)
        low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
        assert scale == (high - low) / np.float32(255)
        assert zero == np.rint(np.clip(-low / scale, 0, 255))
        np.testing.assert_array_equal(data, np.clip(np.rint(x / scale) + zero, 0, 255))
        wide = data.astype(np.int64) - int(zero)
        np.testing.assert_array_equal(sums, wide @ (weights.astype(np.int64) - 3))


def test_levels_with_instructions_for_bytes_are_taken() -> None:
    model = Model()
    x = model.input("x", np.uint8, "m", 8)
    weights = np.ones((8, 16), np.int8)
    model.output(model.add("MatMulInteger", x, model.weight(weights)), np.int32, 2)
    (found,) = tilewright.compile(model.proto()).info.levels
    assert found.name == LEVELS[-1]


@pytest.mark.slow
def test_every_product_has_register_tiles() -> None:
    """Also convolutions, whose channels come first, and small weights, which could be folded."""
    model = Model()
    scale = model.weight(np.array(0.5, np.float32)), model.weight(np.array(0, np.uint8))
    image = model.input("x", np.uint8, "n", 8, "h", "v")
    for shape in ((4, 8, 1, 1), (8, 4, 1, 1), (4, 8, 3, 3), (8, 4, 1, 1)):
        data = model.add("DequantizeLinear", image, *scale)
        weights = model.add("DequantizeLinear", model.weight(np.ones(shape, np.int8)), scale[0])
        image = model.add("QuantizeLinear", model.add("Conv", data, weights), *scale)
    model.output(image, np.uint8, 4)
    made = compile_stages(model.proto(), levels=["avx2"], dims={"h": (4, 64), "v": (4, 64)})
    products = [x for x in made.graph.nodes() if isinstance(x.primitive, Convolve)]
    assert len(products) == 4
    assert all(x.primitive.sums is DType.INT32 and has_tiles(x) for x in products)
