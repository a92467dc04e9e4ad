"""Integer contents read from nodes: they are what the nodes compute, width and all."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph, node
from tilewright.ir.primitives import Cast, Constant, Dimension, Map
from tilewright.ir.symbolic import integer_contents
from tilewright.shape import Scope, symbol

N = symbol("n")
TYPES = [t for t in DType if t.is_integer]


def scope():
    made = Scope()
    made.declare("n", 0, 1 << 40)
    return made


def computed(value, size):
    graph = Graph("test", (), (("y", value),), scope())
    with np.errstate(all="ignore"):
        return int(evaluate(graph, {}, {"n": size})["y"])


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.value)
def test_a_cast_size_wraps_as_its_type_does(dtype):
    back = node(Cast(DType.INT64), node(Cast(dtype), node(Dimension(N))))
    contents = integer_contents(back)
    if dtype is DType.UINT64:
        assert contents is None
        return
    assert contents is not None
    for size in (0, 1, 127, 128, 255, 256, 300, 32768, 65535, 1 << 31, (1 << 32) + 5):
        assert contents.item().evaluate({"n": size}) == computed(back, size)


def test_a_cast_size_that_fits_stays_itself():
    narrow = scope()
    narrow.declare("n", 0, 65536)
    contents = integer_contents(node(Cast(DType.INT32), node(Dimension(N))))
    assert contents is not None
    assert narrow.resolve(contents.item()) is N


@pytest.mark.parametrize("seed", range(20))
def test_arithmetic_in_narrow_types_wraps(seed):
    generator = random.Random(seed)
    dtype = generator.choice([t for t in TYPES if t.bytes < 8])
    value = node(Cast(dtype), node(Dimension(N)))
    for _ in range(4):
        name = generator.choice(["add", "subtract", "multiply", "maximum", "minimum", "negate"])
        other = np.array(generator.randint(0, 127), dtype=dtype.numpy)
        operands = [value] if name == "negate" else [value, node(Constant.of(other))]
        value = node(Map(name), *operands)
    contents = integer_contents(value)
    assert contents is not None
    for size in (0, 1, 5, 127, 200, 300, 40000, 1 << 20, 1 << 31):
        assert contents.item().evaluate({"n": size}) == computed(value, size)


def test_a_constant_beyond_64_bits_wraps():
    least = node(Constant.of(np.array(-(2**63))))
    contents = integer_contents(node(Map("negate"), least))
    assert contents is not None
    assert contents.item().value == -(2**63)
