"""What lies between quantised products, compiled: rounding to bytes, residuals, images, pooling."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tilewright
from tilewright.backend.cpu.machine import host_levels
from tilewright.compile import compile_stages
from tilewright.ir.dtype import DType
from tilewright.ir.kernel import KernelKind
from tilewright.ir.primitives import Map, Window

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.sampled(8)

LEVELS = tuple(level.name for level in host_levels() if level.serves("uint8"))
NUMBERS = (0, 1, 7, 15, 16, 17, 33, 131)
BYTES = {"u": np.uint8, "s": np.int8}


def model_of(nodes: str, inputs: str, output: str, constants: dict[str, Array]) -> onnx.ModelProto:
    """A model in ONNX's text format, with constants."""
    made = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> test ({inputs}) => ({output}) {{ {nodes} }}'
    )
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
    )
    return made


def quantised(x: Array, scale: Array, zero: Array) -> Array:
    """QuantizeLinear, a NaN being the byte 0."""
    with np.errstate(invalid="ignore"):
        whole = np.rint(x / scale) + zero.astype(x.dtype)
    ends = np.iinfo(zero.dtype)
    clipped = np.clip(whole, ends.min, ends.max)
    return np.where(np.isnan(clipped), 0, clipped).astype(zero.dtype)


def numbers(rows: int, columns: int) -> Array:
    """Numbers around ties and the ends of bytes, and what is no number."""
    chance = np.random.default_rng(rows)
    x = chance.integers(-600, 600, (rows, columns)).astype(np.float32) / 4
    rare = np.array([np.nan, np.inf, -np.inf, 1e30, -3e9, 2.0**31, -0.0], np.float32)
    x.view(np.int32)[chance.random(x.shape) < 0.02] = -0x3FFFF5  # a NaN with other low bits
    return np.where(chance.random(x.shape) < 0.2, chance.choice(rare, x.shape), x)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("kind", "zero"), [("u", 0), ("u", 131), ("s", 0), ("s", -128)])
def test_rounding_to_bytes_is_that_of_the_definition(level: str, kind: str, zero: int) -> None:
    scale, point = np.array(0.5, np.float32), np.array(zero, BYTES[kind])
    model = model_of(
        "y = QuantizeLinear (x, s, z)", "float[m, n] x",
        f"{'uint8' if kind == 'u' else 'int8'}[m, n] y", {"s": scale, "z": point},
    )  # fmt: skip
    compiled = tilewright.compile(model, levels=[level])
    for columns in NUMBERS:
        x = numbers(5, columns)
        np.testing.assert_array_equal(compiled(x), quantised(x, scale, point))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("zero", "other"), [(0, 0), (131, 131), (7, 9)])
def test_bytes_that_are_floats_again_at_once(level: str, zero: int, other: int) -> None:
    """They are no bytes in between, but what they would have been, a NaN included."""
    scale, point = np.array(0.5, np.float32), np.array(zero, np.uint8)
    second = np.array(other, np.uint8)
    model = model_of(
        "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, o) y = Add (d, r)",
        "float[m, n] x, float[m, n] r", "float[m, n] y", {"s": scale, "z": point, "o": second},
    )  # fmt: skip
    compiled = tilewright.compile(model, levels=[level])
    for columns in NUMBERS:
        x, r = numbers(4, columns), np.arange(4 * columns, dtype=np.float32).reshape(4, columns)
        made = (quantised(x, scale, point).astype(np.float32) - other) * scale
        np.testing.assert_array_equal(compiled(x=x, r=r), made + r)


def convolved(x: Array, w: Array, stride: int, pad: int, groups: int) -> Array:
    """[N, C, H, W] by [O, C / groups, k, k] in int64."""
    x = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    k = w.shape[2]
    windows = np.lib.stride_tricks.sliding_window_view(x, (k, k), (2, 3))[:, :, ::stride, ::stride]
    n, c, h, v = windows.shape[:4]
    split = windows.reshape(n, groups, c // groups, h, v, k, k)
    kernels = w.astype(np.int64).reshape(groups, w.shape[0] // groups, *w.shape[1:])
    return np.einsum("ngchvij,gocij->ngohv", split, kernels).reshape(n, len(w), h, v)


class Block:
    """An image, a layer of all its channels, a depthwise one, one more, and a residual."""

    channels = 20

    def __init__(self, zeros: tuple[int, int, int], stride: int) -> None:
        chance = np.random.default_rng(3)
        c = self.channels
        shapes = {"wa": (c, 3, 3, 3), "wb": (c, 1, 3, 3), "wc": (c, c, 1, 1), "wd": (c, c, 1, 1)}
        self.weights = {
            name: chance.integers(-127, 128, shape).astype(np.int8)
            for name, shape in shapes.items()
        }
        self.factors = {name: (chance.random(c) / 4e3 + 1e-4).astype(np.float32) for name in shapes}
        self.bias = chance.integers(-4000, 4000, c).astype(np.int32)
        self.zeros = dict(zip("xab", (np.array(z, np.int8) for z in zeros), strict=True))
        self.scale = np.array(0.02, np.float32)
        self.stride = stride

    def model(self) -> onnx.ModelProto:
        constants: dict[str, Array] = {"s": self.scale, "bias": self.bias}
        constants |= {f"z{name}": zero for name, zero in self.zeros.items()}
        constants |= self.weights | {f"s{name}": f for name, f in self.factors.items()}
        constants |= {f"t{name}": f * self.scale for name, f in self.factors.items()}
        text = "ix = QuantizeLinear (x, s, zx) dx = DequantizeLinear (ix, s, zx) "
        text += "fd = DequantizeLinear <axis = 0> (bias, tb) "
        for name in self.weights:
            text += f"f{name} = DequantizeLinear <axis = 0> ({name}, s{name}) "
        text = text.replace("(bias, tb)", "(bias, twb)")
        text += "ca = Conv <pads = [1, 1, 1, 1]> (dx, fwa) ra = Relu (ca) "
        text += "ia = QuantizeLinear (ra, s, za) da = DequantizeLinear (ia, s, za) "
        text += f"cb = Conv <pads = [1, 1, 1, 1], group = {self.channels}, "
        text += f"strides = [{self.stride}, {self.stride}]> (da, fwb, fd) "
        text += "ib = QuantizeLinear (cb, s, zb) db = DequantizeLinear (ib, s, zb) "
        text += "cc = Conv (db, fwc) ic = QuantizeLinear (cc, s, zb) "
        text += "dc = DequantizeLinear (ic, s, zb) e = Add (db, dc) "
        text += "ie = QuantizeLinear (e, s, zx) de = DequantizeLinear (ie, s, zx) "
        text += "y = Conv (de, fwd)"
        return model_of(text, "float[n, 3, h, v] x", "float[n, c, p, q] y", constants)

    def expected(self, x: Array) -> Array:
        """The same, products in int64 and all else in float64."""
        step = np.float64(self.scale)

        def layer(q: Array, zero: str, name: str, *geometry: int) -> Array:
            wide = q.astype(np.int64) - int(self.zeros[zero])
            factor = self.factors[name].astype(np.float64) * step
            sums = convolved(wide, self.weights[name], *geometry)
            sums += self.bias[:, None, None] if name == "wb" else 0
            return sums * factor[:, None, None]

        def rounded(values: Array, zero: str) -> Array:
            return quantised(values, step, self.zeros[zero])

        ix = quantised(x, self.scale, self.zeros["x"])
        ia = rounded(np.maximum(layer(ix, "x", "wa", 1, 1, 1), 0), "a")
        ib = rounded(layer(ia, "a", "wb", self.stride, 1, self.channels), "b")
        ic = rounded(layer(ib, "b", "wc", 1, 0, 1), "b")
        total = sum((i.astype(np.float64) - int(self.zeros["b"])) * step for i in (ib, ic))
        return layer(rounded(np.asarray(total), "x"), "x", "wd", 1, 0, 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("zeros", "stride"), [((0, -128, -36), 1), ((-128, 7, 0), 2)])
def test_a_block_of_quantised_layers(level: str, zeros: tuple[int, int, int], stride: int) -> None:
    """Ties that float32 does not see go the other way, which one product makes visible."""
    block = Block(zeros, stride)
    compiled = tilewright.compile(block.model(), levels=[level])
    largest = max(np.abs(w.astype(int)).max() for w in block.weights.values())
    quantum = largest * float(block.scale * block.factors["wd"].max())
    for batch, height, width in ((1, 1, 1), (0, 4, 4), (2, 2, 5), (1, 17, 33), (3, 31, 16)):
        x = np.random.default_rng(height).standard_normal((batch, 3, height, width))
        x = x.astype(np.float32)
        want, got = block.expected(x), compiled(x)
        assert got.shape == want.shape
        apart = np.abs(got - want)
        # One byte of one layer is another one in less than a hundredth of all pixels.
        assert apart.max(initial=0.0) <= 4 * quantum
        assert (
            (apart > 2.0**-20 * np.abs(want).max(initial=0.0)).mean() < 0.02 if want.size else True
        )


def test_bytes_alone_lie_between_quantised_layers() -> None:
    """Every tensor in memory is bytes, made without a division; the image is copied once."""
    made = compile_stages(Block((0, -128, -36), 1).model())
    (plan,) = made.plans.values()
    *inner, last = plan.kernels
    assert [output.dtype for output in last.outputs] == [DType.FLOAT32]
    assert all(output.dtype is DType.UINT8 for kernel in inner for output in kernel.outputs)
    assert [k.kind for k in plan.kernels].count(KernelKind.LOOPS) == 1
    assert len(plan.kernels) == 5
    divisions = [x for x in made.graph.nodes() if x.primitive == Map("divide")]
    assert len(divisions) == 1  # of the image


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_pixels_are_made_of_planes(level: str, channels: int) -> None:
    """In rows shorter and longer than a task, with and without a border."""
    chance = np.random.default_rng(channels)
    pads = np.array([0, 1, 2, 0, 0, 2, 1, 0], np.int64)
    constants: dict[str, Array] = {
        "s": np.array(0.03, np.float32), "z": np.array(9, np.uint8), "pads": pads
    }  # fmt: skip
    text = "q = QuantizeLinear (x, s, z) t = Transpose <perm = [0, 2, 3, 1]> (q) "
    text += "y = Pad (t, pads, z) u = Identity (t)"
    model = model_of(
        text, f"float[n, {channels}, h, v] x",
        f"uint8[n, a, b, {channels}] y, uint8[n, h, v, {channels}] u", constants,
    )  # fmt: skip
    compiled = tilewright.compile(model, levels=[level])
    for batch, height, width in ((1, 1, 1), (2, 0, 3), (2, 3, 17), (1, 5, 64), (1, 2, 2500)):
        x = chance.standard_normal((batch, channels, height, width)).astype(np.float32)
        turned = quantised(x, constants["s"], constants["z"]).transpose(0, 2, 3, 1)
        padded = np.pad(turned, ((0, 0), (1, 2), (2, 1), (0, 0)), constant_values=9)
        first, second = compiled(x)
        np.testing.assert_array_equal(first, padded)
        np.testing.assert_array_equal(second, turned)


@pytest.mark.parametrize("level", LEVELS)
def test_bytes_leave_with_their_channels_first(level: str) -> None:
    """They are turned in cache, not stored one by one; padded data are turned by themselves."""
    chance = np.random.default_rng(5)
    weights = chance.integers(-90, 90, (19, 24, 3, 3)).astype(np.int8)
    constants: dict[str, Array] = {
        "s": np.array(1, np.float32), "z": np.array(120, np.uint8), "w": weights,
        "none": np.array(0, np.int8), "t": np.array(512, np.float32), "y0": np.array(7, np.uint8),
    }  # fmt: skip
    text = "y = QLinearConv <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> "
    text += "(x, s, z, w, s, none, t, y0)"
    model = model_of(text, "uint8[n, 24, h, v] x", "uint8[n, 19, a, b] y", constants)
    made = compile_stages(model, levels=[level])
    *_, last = made.levels[level].lowered
    staged = {b.name for v in last.variants for b in v.steps[-1].program.scratch}
    assert "stage_o0" in staged
    compiled = tilewright.compile(model, levels=[level])
    for batch, height, width in ((0, 3, 3), (1, 1, 1), (2, 4, 7), (1, 16, 35), (3, 9, 12)):
        x = chance.integers(0, 256, (batch, 24, height, width)).astype(np.uint8)
        sums = convolved(x.astype(np.int64) - 120, weights, 2, 1, 1).astype(np.float32)
        expected = quantised(sums, constants["t"], constants["y0"])
        np.testing.assert_array_equal(compiled(x), expected)


@pytest.mark.parametrize("level", LEVELS)
def test_pooling_of_bytes(level: str) -> None:
    scale, zero = np.array(0.1, np.float32), np.array(-5, np.int8)
    constants: dict[str, Array] = {"s": scale, "z": zero}
    text = "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) "
    text += "p = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (d) "
    text += "y = QuantizeLinear (p, s, z)"
    model = model_of(text, "float[n, 5, h, v] x", "int8[n, 5, a, b] y", constants)
    dims = {"h": (1, 256), "v": (1, 256)}
    made = compile_stages(model, levels=[level], dims=dims)
    kinds = [x.dtype for x in made.graph.nodes() if isinstance(x.primitive, Window)]
    assert kinds == [DType.INT8]
    compiled = tilewright.compile(model, levels=[level], dims=dims)
    for batch, height, width in ((1, 1, 1), (0, 3, 3), (2, 2, 7), (1, 16, 131), (2, 33, 17)):
        x = np.random.default_rng(width).standard_normal((batch, 5, height, width)) * 6
        q = quantised(x.astype(np.float32), scale, zero).astype(np.int64)
        q = np.pad(q, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-128)
        windows = np.lib.stride_tricks.sliding_window_view(q, (3, 3), (2, 3))
        want = windows[:, :, ::2, ::2].max((4, 5))
        np.testing.assert_array_equal(compiled(x.astype(np.float32)), want)
