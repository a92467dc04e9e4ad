"""Small graphs that are unusual but right: empty axes, sizes known late, results read twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from support.text_models import assert_as_reference, floats, integers, model
from tilewright.options import PlanName
from tilewright.runtime.artifact import aligned_memory
from tilewright.support.errors import DimensionError, ExecutionError

# ---------------------------------------------------------------- sizes that data decides


def test_the_shape_of_a_result_is_computed_though_nothing_reads_the_result() -> None:
    assert_as_reference(
        "g (float[n, 3] x) => (int64[r] y) { nz = NonZero(x)  y = Shape(nz) }", {"x": floats(4, 3)}
    )


def test_a_size_learnt_from_a_sum_does_not_join_the_kernel_of_the_sum() -> None:
    assert_as_reference(
        """g (float[n, 3] x) => (float[r] y, int64[a, b] nz)
        <int64[1] axis = {1}, int64 one = {1}> {
            s = ReduceSum(x, axis)
            nz = NonZero(s)
            shape = Shape(nz)
            count = Gather(shape, one)
            divisor = Cast<to = 1>(count)
            y = Div(s, divisor)
        }""",
        {"x": floats(4, 3)},
    )


def test_a_part_of_a_constant_that_a_size_chooses_is_no_constant() -> None:
    assert_as_reference(
        """g (int64[k] x, float[1, 3] z) => (float[a, b] y)
        <float[6, 1] table = {1, 2, 3, 4, 5, 6}, int64[1] one = {1}> {
            begin = Shape(x)
            end = Add(begin, one)
            part = Slice(table, begin, end)
            square = MatMul(part, part)
            y = MatMul(square, z)
        }""",
        {"x": integers(4), "z": floats(1, 3)},
    )


# ---------------------------------------------------------------- empty axes


def test_a_convolution_over_no_channels_makes_zeros() -> None:
    assert_as_reference(
        """g (float[n, 4, s] x) => (float[a, b, c] y, float[d, e, f] z)
        <int64[3] shape = {5, 0, 2}, int64[1] none = {0}, int64[1] one = {1},
         float[5] bias = {1, 2, 3, 4, 5}> {
            part = Slice(x, none, none, one)
            weights = ConstantOfShape <value = float[1] {1.0}>(shape)
            y = Conv(part, weights, bias)
            z = Conv(part, weights)
        }""",
        {"x": floats(2, 4, 6)},
    )


def test_nothing_is_repeated_where_more_than_its_shape_is_read() -> None:
    assert_as_reference(
        """g (float[n] x) => (bool[r] y) <int64[1] none = {0}, int64[1] three = {3}> {
            t, i = TopK(x, none)
            u = Tile(t, three)
            y = Equal(u, t)
        }""",
        {"x": floats(4)},
    )


@pytest.mark.slow
def test_rows_of_an_axis_that_is_always_empty_are_multiplied() -> None:
    assert_as_reference(
        """g (float[m, s, m] x, float[m, 4] w) => (float[a, b, c] y)
        <int64[1] none = {0}> { rows = Slice(x, none, none)  y = MatMul(rows, w) }""",
        {"x": floats(3, 2, 3), "w": floats(3, 4)},
    )


def test_the_places_of_maxima_that_do_not_exist_are_not_looked_up() -> None:
    """Where one axis is too short for a window, nothing is looked up along the others."""
    assert_as_reference(
        """g (float[h, h, h] x) => (int64[a, b, c, d] places) <int64[1] last = {3}> {
            image = Unsqueeze(x, last)
            shape = Shape(image)
            ones = ConstantOfShape<value = float[1] {1}>(shape)
            y, places = MaxPool<kernel_shape = [3, 3], strides = [2, 3]>(ones)
        }""",
        {"x": floats(8, 8, 8)},
    )


def test_a_part_of_a_flattened_tensor_without_elements_is_empty() -> None:
    """Its first position is divided by sizes that are 0."""
    assert_as_reference(
        """g (float[m, n, m] x) => (float[r] y) <int64[1] all = {-1}, int64[1] three = {3}> {
            turned = Transpose<perm = [1, 2, 0]>(x)
            flat = Reshape(turned, all)
            count = Shape(flat)
            before = Neg(count)
            y = Slice(flat, three, before)
        }""",
        {"x": floats(0, 1, 0)},
    )


def test_a_reshape_does_not_move_past_a_sum_over_nothing() -> None:
    """r has as many elements as x for n = 0 whatever m is, and the result has m rows."""
    assert_as_reference(
        """g (int64[n, 6] x, int64[m] y, int64[n, k] z) => (int64[a, b] o) {
            lead = Shape<end = 1>(x)
            last = Shape(y)
            shape = Concat<axis = 0>(lead, last)
            r = Reshape<allowzero = 1>(x, shape)
            o = Einsum<equation = "nm,nk->mk">(r, z)
        }""",
        {"x": integers(0, 6), "y": integers(200), "z": integers(0, 2)},
        {"x": integers(3, 6), "y": integers(6), "z": integers(3, 2)},
    )


def test_an_index_that_nothing_reads_is_not_out_of_bounds() -> None:
    assert_as_reference(
        """g (float[n] x) => (float[m] y) {
            shape = Shape(x)
            zeros = ConstantOfShape<value = int64[1] {0}>(shape)
            y = Gather(x, zeros)
        }""",
        {"x": floats(0)},
        {"x": floats(3)},
    )


def test_an_index_out_of_bounds_is_an_error_where_it_is_read() -> None:
    text = """g (float[n] x, int64[m] i) => (float[m, k] y)
    <int64[2] shape = {-1, 1}> {
        column = Reshape(i, shape)
        lead = Shape(x)
        width = Concat<axis = 0>(one, lead)
        wide = Expand(column, width)
        y = Gather(x, wide)
    }""".replace("{-1, 1}>", "{-1, 1}, int64[1] one = {1}>")
    compiled = tw.compile(model(text))
    with pytest.raises(ExecutionError, match="out of bounds"):
        compiled(x=floats(3), i=np.array([3]))
    assert compiled(x=floats(0), i=np.array([3])).shape == (1, 0)


@pytest.mark.parametrize("size", [0, "k"])
def test_indices_of_an_empty_axis_are_not_read(size: int | str) -> None:
    count = 0 if size == 0 else "n"
    assert_as_reference(
        f"g (float[{size}] x, int64[{count}, 1] i) => (float[r] y) {{ y = GatherND(x, i) }}",
        {"x": floats(0), "i": np.zeros((0, 1), np.int64)},
    )


def test_a_divisor_of_nothing_may_be_zero() -> None:
    assert_as_reference(
        """g (int64[n, m] a, int64[n, 1] b) => (int64[n, m] y) { y = Div(a, b) }""",
        {"a": np.zeros((2, 0), np.int64), "b": np.zeros((2, 1), np.int64)},
    )


# ---------------------------------------------------------------- what a selection discards


DIVIDE = """g (int64[n] a, int64[n] b) => (int64[n] y) <int64 zero = {{0}}, int64 three = {{3}}> {{
    empty = Equal(b, zero)
    {body}
}}"""


@pytest.mark.parametrize(
    "body",
    [
        "d = Div(a, b)  y = Where(empty, zero, d)",
        "d = Mod(a, b)  e = Add(d, three)  f = Mul(e, e)  y = Where(empty, a, f)",
        "some = Not(empty)  d = Div(a, b)  e = Mod(d, b)  y = Where(some, e, three)",
        "d = Div(a, b)  f = Cast<to = 1>(d)  g = Cast<to = 7>(f)  y = Where(empty, zero, g)",
    ],
)
def test_a_division_by_zero_that_where_discards_is_no_error(body: str) -> None:
    feed = {"a": np.array([1, 7, 9]), "b": np.array([0, 2, 4])}
    assert_as_reference(DIVIDE.format(body=body), feed)


VIEWED = """g (int64[m] a, int64[m] b, bool[n, m] c, int64[n, m] z) => (int64[n, p] y)
<int64 one = {{1}}, int64[1] first = {{0}}, int64[1] last = {{1}}, int64[4] ends = {{0, 1, 0, 1}},
 int64[2] row = {{1, -1}}> {{
    d = Div(a, b)
    {body}
}}"""
BETWEEN = {
    "new axis": "y = Where(c, d, z)",
    "axis of one": "e = Reshape(d, row)  y = Where(c, e, z)",
    "column": "e = Reshape(d, row)  f = Transpose(e)  g = Transpose(c)  v = Where(g, f, one)"
    "  y = Transpose(v)",
    "computed on": "e = Reshape(d, row)  f = Add(e, z)  y = Where(c, f, z)",
    "twice": "e = Not(c)  f = Where(e, z, d)  y = Where(c, f, z)",
    "ends": "e = Reshape(d, row)  f = Pad(e, ends)  g = Not(c)  h = Cast<to = 7>(g)"
    "  i = Pad(h, ends, one)  j = Cast<to = 9>(i)  y = Where(j, one, f)",
    "joined": "e = Add(d, z)  f = Concat<axis = 1>(z, e)  g = Not(c)  h = Concat<axis = 1>(g, g)"
    "  y = Where(h, one, f)",
    "part": "e = Reshape(d, row)  f = Where(c, e, z)  y = Add(f, z)",
}


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("kind", BETWEEN)
def test_a_division_by_zero_is_discarded_behind_views(kind: str, count: int) -> None:
    """Only where all elements that repeat a quotient are discarded."""
    seen = np.ones((count, 4), np.bool_)
    seen[:, 1] = False
    feed = {
        "a": np.array([7, 8, 9, 5]),
        "b": np.array([2, 0, 3, -1]),
        "c": seen,
        "z": np.arange(count * 4).reshape(count, 4),
    }
    text = VIEWED.format(body=BETWEEN[kind])
    assert_as_reference(text, feed)
    if count:
        seen[-1, 1] = True
        with pytest.raises(ExecutionError, match="division by zero"):
            tw.compile(model(text)).run(feed)


@pytest.mark.parametrize("size", [1, 3])
def test_a_division_by_zero_is_discarded_that_may_be_repeated(size: int) -> None:
    """Whether the axis is repeated is known in the call only."""
    text = """g (int64[n, m] a, int64[n, m] b, bool[r, m] c, int64[r, m] z) => (int64[q, m] y) {
        d = Div(a, b)
        y = Where(c, d, z)
    }"""
    divisors = np.full((size, 2), 3)
    divisors[-1, 1] = 0
    seen = np.ones((3, 2), np.bool_)
    seen[0 if size == 1 else 2 :, 1] = False
    feed = {"a": np.full((size, 2), 7), "b": divisors, "c": seen, "z": np.zeros((3, 2), np.int64)}
    assert_as_reference(text, feed)
    seen[-1, 1] = True
    with pytest.raises(ExecutionError, match="division by zero"):
        tw.compile(model(text)).run(feed)


def test_a_division_by_zero_is_discarded_behind_a_sum() -> None:
    text = """g (int64[n, m] a, int64[n, m] b, bool[n, 1] c) => (int64[n, 1] y)
    <int64 zero = {0}, int64[1] last = {1}> {
        d = Div(a, b)
        s = ReduceSum(d, last)
        y = Where(c, zero, s)
    }"""
    feed = {"a": np.array([[4, 6], [8, 9]]), "b": np.array([[0, 1], [2, 3]])}
    assert_as_reference(text, {**feed, "c": np.array([[True], [False]])})


def test_a_division_by_zero_that_is_seen_is_an_error() -> None:
    body = "d = Div(a, b)  e = Where(empty, zero, d)  y = Add(d, e)"
    compiled = tw.compile(model(DIVIDE.format(body=body)))
    with pytest.raises(ExecutionError, match="division by zero"):
        compiled(a=np.array([1, 2]), b=np.array([1, 0]))


def test_a_division_by_zero_of_which_there_are_no_copies_is_no_error() -> None:
    text = """g (int64[n] a, int64[n] b, int64[1] count) => (int64[r, c] y) {
        size = Shape(a)
        target = Concat<axis = 0>(count, size)
        p = Expand(a, target)
        q = Expand(b, target)
        y = Div(p, q)
    }"""
    feed = {"a": np.array([7, 8]), "b": np.array([2, 0])}
    assert_as_reference(text, {**feed, "count": np.array([0])})
    with pytest.raises(ExecutionError, match="division by zero"):
        tw.compile(model(text)).run({**feed, "count": np.array([1])})


# ---------------------------------------------------------------- values used twice


def test_two_outputs_may_be_one_string_input() -> None:
    compiled = tw.compile(
        model("g (string[n] x) => (string[n] y, string[n] z) { y = Identity(x) z = Identity(x) }")
    )
    words = np.array(["a", "bc"], dtype=object)
    assert all(list(value) == ["a", "bc"] for value in compiled.run({"x": words}).values())


def test_two_kernels_do_not_wait_for_each_other() -> None:
    """Neither of the sums of rows may join both quotients: each would need the other first."""
    assert_as_reference(
        """g (float[n, n] x, float[n, n] y) => (float[n, n] tp, float[n, n] q, float[n, n] u)
        <int64[1] axis = {1}> {
            e = ReduceSum(x, axis)
            p = Div(x, e)
            tp = Transpose<perm = [1, 0]>(p)
            r = ReduceSum(y, axis)
            s = Div(y, r)
            q = Add(p, s)
            u = Add(s, tp)
        }""",
        {name: floats(5, 5) for name in ("x", "y")},
    )


# ---------------------------------------------------------------- sizes that clash

CLASHES = {
    "reshape": (
        "g (float[n, m] x, int64[2] s) => (float[p, q] y) { y = Reshape(x, s) }",
        {"x": floats(3, 5), "s": np.array([4, 2])},
        ["cannot be reshaped", '"n" = 3', '"m" = 5', " = 4", " = 2"],
    ),
    "reshape to a multiple": (
        "g (float[n] x) => (float[p, q] y) <int64[2] s = {-1, 4}> { y = Reshape(x, s) }",
        {"x": floats(7)},
        ["cannot be reshaped", '"n" = 7', "4"],
    ),
    "broadcast": (
        "g (float[n, m] x, float[k, m] z) => (float[p, m] y) { y = Add(x, z) }",
        {"x": floats(3, 2), "z": floats(5, 2)},
        ["cannot be broadcast together: sizes n and k", '"n" = 3', '"k" = 5'],
    ),
    "concat": (
        "g (float[n, m] x, float[n, k] z) => (float[p, m] y) { y = Concat<axis = 0>(x, z) }",
        {"x": floats(3, 2), "z": floats(3, 4)},
        ["axis 1: size 4 differs", '"m" = 2'],
    ),
}


@pytest.mark.parametrize("kind", CLASHES)
def test_sizes_that_clash_are_named_with_their_values(kind: str) -> None:
    text, feed, parts = CLASHES[kind]
    with pytest.raises(DimensionError) as error:
        tw.compile(model(text)).run(feed)
    assert not [part for part in parts if part not in error.value.message], error.value.message


# ---------------------------------------------------------------- digits


LAYER = """g (float[n, 768] x, float[768] scale, float[768] bias) => (float[n, 768] y) {
    y = LayerNormalization(x, scale, bias)
}"""


def test_rows_of_equal_values_are_normalised_to_the_bias() -> None:
    values = np.array([1000.1, 0.1, -3.3, 12345.6, 1e-30, 1e30], np.float32)
    feed = {"x": np.repeat(values[:, None], 768, 1), "scale": floats(768), "bias": floats(768)}
    found = tw.compile(model(LAYER)).run(feed)["y"]
    np.testing.assert_array_equal(found, np.broadcast_to(feed["bias"], found.shape))


@pytest.mark.parametrize("mean", [0.0, 1e2, 1e4, 1e5])
def test_rows_far_from_zero_are_normalised_without_losing_digits(mean: float) -> None:
    x = (floats(4, 768) + mean).astype(np.float32)
    feed = {"x": x, "scale": np.ones(768, np.float32), "bias": np.zeros(768, np.float32)}
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    want = centred / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(tw.compile(model(LAYER)).run(feed)["y"], want, atol=1e-6)


# ---------------------------------------------------------------- constants


def test_strings_of_the_model_reach_the_reference_and_the_artifact(tmp_path: Path) -> None:
    proto = model("g (string[n] x, string[1] c) => (string[n] y) { y = StringConcat(x, c) }")
    proto.opset_import[0].version = 20
    proto.graph.initializer.append(
        onnx.helper.make_tensor("c", onnx.TensorProto.STRING, [1], ["é!".encode()])
    )
    compiled = tw.compile(proto)
    compiled.save(tmp_path / "model.tw")
    for each in (compiled, tw.load(tmp_path / "model.tw")):
        result = each(np.array(["a", "b"], object))
        assert result.tolist() == ["aé!", "bé!"]


def test_a_constant_is_what_it_was_when_it_was_given() -> None:
    proto = model("g (float[n, 300] x, float[300] w) => (float[n, 300] y) { y = Add(x, w) }")
    w = aligned_memory(300 * 4).view(np.float32)
    w[:] = 1
    first = tw.compile(proto, constants={"w": w})
    w[:] = 5
    again = tw.compile(proto, constants={"w": np.ones(300, np.float32)})
    for each in (first, again):
        assert (each(np.zeros((2, 300), np.float32)) == 1).all()


# ---------------------------------------------------------------- results that are read elsewhere

FLIPPED = """g (float[m, n] x) => (float[m, n] y)
<int64[1] back = {-1}, int64[1] end = {-9223372036854775807}, int64[1] axis = {1}> {
    e = Exp(x)
    sums = ReduceSum(e, axis)
    turned = Slice(e, back, end, axis, back)
    y = Mul(turned, sums)
}"""
TURNED = """g (float[n, n] x) => (float[1, 1] sum, float[a] y)
<int64[2] axes = {0, 1}, int64[1] flat = {-1}> {
    t = Transpose(x)
    e = Exp(t)
    sum = ReduceSum(e, axes)
    y = Reshape(e, flat)
}"""


@pytest.mark.parametrize("plan", ["greedy", "backbone", "optimal"])
@pytest.mark.parametrize("text", [FLIPPED, TURNED], ids=["flipped", "turned"])
def test_what_is_kept_for_other_places_of_a_row_is_not_written_over(
    text: str, plan: PlanName
) -> None:
    """Elements of rows may be kept where results go only if each is read at its own place."""
    proto = model(text)
    compiled = tw.compile(proto, levels="x86-64", plan=plan, check=True)
    for size in (0, 1, 2, 3, 17):
        feeds = {"x": floats(size, size)}
        expected = ReferenceEvaluator(proto).run(None, feeds)
        for ours, theirs in zip(compiled.run(feeds).values(), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("plan", ["none", "backbone"])
@pytest.mark.parametrize(
    "node",
    ["y = Unique(made)", "y = ScatterElements(made, at, updates)"],
    ids=["unique", "scatter"],
)
def test_what_is_made_of_numbers_is_in_memory_for_what_needs_it_there(
    node: str, plan: PlanName
) -> None:
    proto = model(
        f"""g (int64[n] at, float[n] updates) => (float[a] y)
        {{ size = Shape(at)  made = ConstantOfShape<value = float[1] {{2}}>(size)  {node} }}"""
    )
    compiled = tw.compile(proto, levels="x86-64", plan=plan, check=True)
    feeds = {"at": np.array([2, 0, 1]), "updates": floats(3)}
    (expected,) = ReferenceEvaluator(proto).run(None, feeds)
    np.testing.assert_array_equal(compiled.run(feeds)["y"], expected)


@pytest.mark.parametrize("plan", ["greedy", "optimal"])
@pytest.mark.parametrize(
    ("results", "last"),
    [("float[m, m, m] c, float[m, m, m] w", ""), ("float[m, m, m] y", "y = Add(c, w)")],
)
def test_weights_of_an_attention_that_has_the_shape_of_its_context(
    results: str, last: str, plan: PlanName
) -> None:
    """They are outputs, or are added to the context: then they have to be in memory."""
    proto = model(
        f"""g (float[m, m, m] q, float[m, m, m] k, float[m, m, m] v) => ({results})
        {{ s = MatMul(q, k)  w = Softmax<axis = -1>(s)  c = MatMul(w, v)  {last} }}"""
    )
    compiled = tw.compile(proto, levels="x86-64", plan=plan, check=True)
    for size in (0, 1, 5):
        feeds = {name: floats(size, size, size) for name in "qkv"}
        expected = ReferenceEvaluator(proto).run(None, feeds)
        for ours, theirs in zip(compiled.run(feeds).values(), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------- steps that never run


@pytest.mark.parametrize("reverse", [0, 1])
def test_a_running_sum_of_one_gathered_element_reads_no_other(reverse: int) -> None:
    text = """g (int64[n] x, int64[1] i) => (int64[m] y) <int32 axis = {-1}> {
        picked = Gather(x, i)
        y = CumSum<exclusive: int = 1, reverse: int = REVERSE>(picked, axis)
    }"""
    compiled = tw.compile(model(text.replace("REVERSE", str(reverse))), check=True)
    assert compiled(np.array([7], np.int64), np.array([-1], np.int64)).tolist() == [0]


@pytest.mark.slow
def test_a_product_that_is_known_to_have_no_rows_moves_no_results() -> None:
    text = """g (float[m, k] x, float[k, 4] w) => (float[a, 4] y)
        <int64[1] start = {1}, int64[1] stop = {1}, int64[1] axis = {0}> {
        none = Slice(x, start, stop, axis)
        y = MatMul(none, w)
    }"""
    compiled = tw.compile(model(text), check=True)
    assert compiled(floats(3, 5), floats(5, 4)).shape == (0, 4)
