"""What the standard says at the edges: widths of integers, mixed types, empty axes, far ends."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from support.text_models import assert_as_reference, floats, integers, model
from tilewright.support.errors import DimensionError, InvalidModelError, UnsupportedError


def test_a_dimension_that_is_divided_has_its_default_range():
    text = "g (float[n] x) => (float[a,b] y) <int64[2] s = {-1, 80}> { y = Reshape(x, s) }"
    assert_as_reference(text, *({"x": floats(n)} for n in (160, 0, 80, 800)))
    with pytest.raises(DimensionError, match="number of elements differs"):
        tw.compile(model(text)).run({"x": floats(81)})


@pytest.mark.slow
@pytest.mark.parametrize("names", [("_m0", "_n0"), ("_n", "_m"), ("_threads", "number_of_threads")])
def test_dimensions_may_have_the_names_of_the_compiler(names):
    a, b = names
    head = f"g (float[{a}, 5] x, float[5, {b}] w) => (float[{a}, {b}] y)"
    text = head + " { p = MatMul(x, w)\n y = Relu(p) }"
    assert_as_reference(text, {"x": floats(7, 5), "w": floats(5, 9)})


def test_a_size_cast_to_eight_bits_wraps():
    text = """g (float[n] x) => (int64[1] y) {
        s = Shape(x)
        u = Cast<to=2>(s)
        y = Cast<to=7>(u)
    }"""
    assert_as_reference(text, {"x": floats(300)}, {"x": floats(3)})


@pytest.mark.slow
def test_gemm_does_not_read_what_is_multiplied_by_zero():
    text = "g (float[n,4] x, float[4,5] w, float[5] c) => (float[n,5] y) "
    compiled = tw.compile(model(text + "{ y = Gemm<beta=0.0>(x, w, c) }"))
    x, w = floats(3, 4), floats(4, 5)
    got = compiled.run({"x": x, "w": w, "c": np.full(5, np.nan, np.float32)})["y"]
    np.testing.assert_allclose(got, x @ w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softplus_and_mish_have_all_digits_for_negative_values(dtype):
    kind = {np.float32: "float", np.float64: "double"}[dtype]
    text = f"g ({kind}[n] x) => ({kind}[n] y, {kind}[n] z) {{ y = Softplus(x)\n z = Mish(x) }}"
    x = np.concatenate([np.linspace(-80, 80, 4001), [-1e-3, -1e-7, 0, 1e-7]]).astype(dtype)
    got = tw.compile(model(text)).run({"x": x})
    exact = x.astype(np.longdouble)
    softplus = np.maximum(exact, 0) + np.log1p(np.exp(-np.abs(exact)))
    few = 4 * np.finfo(dtype).eps
    np.testing.assert_allclose(got["y"], softplus.astype(dtype), rtol=few)
    np.testing.assert_allclose(got["z"], (exact * np.tanh(softplus)).astype(dtype), rtol=few)


@pytest.mark.parametrize("ends", [(-(2**63), 2**63 - 1, 1), (2**63 - 1, -(2**63), -1)])
def test_a_slice_of_a_size_known_late_may_have_extreme_ends(ends):
    text = "g (float[n,3] x) => (int64[2,k] y) { z = NonZero(x)\n y = Slice(z, s, e, a, t) }"
    proto = model(text)
    for name, value in zip("seta", (*ends, 1), strict=True):
        proto.graph.initializer.append(numpy_helper.from_array(np.array([value]), name))
    assert_as_reference(proto, {"x": floats(4, 3)}, {"x": np.zeros((2, 3), np.float32)})


def test_a_result_has_the_type_of_the_operand_that_the_standard_says():
    text = "g (float[1,2,h,w] x, float16[1,3,3,2] g) => (float[1,2,3,3] y) { y = GridSample(x, g) }"
    grid = (floats(1, 3, 3, 2) * 0.5).astype(np.float16)
    (value,) = tw.compile(model(text)).run({"x": floats(1, 2, 5, 5), "g": grid}).values()
    assert value.dtype == np.float32


@pytest.mark.parametrize("indices", [[0, 4], [[0, 0], [1, 1]]])
def test_a_constant_may_be_given_sparsely(indices):
    values = helper.make_tensor("v", onnx.TensorProto.FLOAT, [2], [1.0, 2.0])
    places = numpy_helper.from_array(np.array(indices), "i")
    proto = model("g (float[n,3] x) => (float[n,3] y) { c = Relu(x)\n y = Add(x, c) }")
    sparse = helper.make_sparse_tensor(values, places, [2, 3])
    proto.graph.node[0].CopyFrom(helper.make_node("Constant", [], ["c"], sparse_value=sparse))
    got = tw.compile(proto, dims={"n": 2}).run({"x": np.zeros((2, 3), np.float32)})["y"]
    assert got.tolist() == [[1, 0, 0], [0, 2, 0]]


@pytest.mark.parametrize("mode", ["edge", "wrap", "reflect"])
def test_an_empty_axis_is_not_padded_with_its_own_elements(mode):
    text = f"""g (float[n,m] x) => (float[a,b] y) <int64[4] p = {{0, 1, 0, 1}}>
        {{ y = Pad<mode="{mode}">(x, p) }}"""
    assert_as_reference(text, {"x": floats(3, 4)}, {"x": floats(0, 4)}, {"x": floats(2, 1)})
    with pytest.raises(DimensionError, match="axis 1 has no elements to pad it with"):
        tw.compile(model(text)).run({"x": floats(3, 0)})


def test_an_empty_batch_is_unfolded():
    """[0, c, 9] by [0, c, -1]: what is kept says nothing about the rest, which is 9."""
    text = """g (float[0,1,3,3] x, float[n,1,3,3] z) => (float[a,b,c] y, float[d,e,f] w)
        <int64[3] s = {0, 1, -1}> { y = Reshape(x, s)\n w = Reshape(z, s) }"""
    got = tw.compile(model(text)).run({"x": floats(0, 1, 3, 3), "z": floats(0, 1, 3, 3)})
    assert [value.shape for value in got.values()] == [(0, 1, 9), (0, 1, 9)]


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_scalars_are_scattered_and_gathered(reduction):
    text = f"""g (float x, int64 i, float u) => (float y, float z) {{
        y = ScatterElements<axis=0, reduction="{reduction}">(x, i, u)
        z = GatherElements<axis=0>(y, i)
    }}"""
    feeds = {"x": np.float32(1), "i": np.int64(0), "u": np.float32(5)}
    got = tw.compile(model(text)).run({name: np.asarray(v) for name, v in feeds.items()})
    expected = 5 if reduction == "none" else 6
    assert [(value.shape, float(value)) for value in got.values()] == [((), expected)] * 2


def test_the_body_of_a_sequence_map_reads_values_from_around_it():
    info, node = helper.make_tensor_value_info, helper.make_node
    body = helper.make_graph(
        [node("Add", ["e", "outer"], ["r"])], "b", [info("e", 1, None)], [info("r", 1, None)]
    )
    nodes = [
        node("Relu", ["o"], ["outer"]),
        node("SequenceConstruct", ["x", "y"], ["s"]),
        node("SequenceMap", ["s"], ["t"], body=body),
        node("ConcatFromSequence", ["t"], ["z"], axis=0),
    ]
    inputs = [info("x", 1, ["n"]), info("y", 1, ["m"]), info("o", 1, [1])]
    graph = helper.make_graph(nodes, "g", inputs, [info("z", 1, ["k"])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    feeds = {"x": floats(2), "y": floats(3), "o": np.array([4.0], np.float32)}
    got = tw.compile(proto).run(feeds)["z"]
    np.testing.assert_array_equal(got, np.concatenate([feeds["x"], feeds["y"]]) + 4)


def test_functions_in_bodies_may_be_listed_in_any_order():
    imports = '<ir_version: 10, opset_import: ["" : 18, "own" : 1]>'
    graph = """g (float[n] x, bool c) => (float[n] y) {
        y = If(c)<
            then_branch = a () => (float[n] p) { p = own.outer(x) },
            else_branch = b () => (float[n] q) { q = Neg(x) }
        >
    }"""
    own = '<domain: "own", opset_import: ["" : 18, "own" : 1]>'
    outer = f"{own} outer (a) => (r) {{ t = own.inner(a)\n r = Mul(a, t) }}"
    inner = f"{own} inner (a) => (r) {{ r = Neg(a) }}"
    for functions in (f"{outer} {inner}", f"{inner} {outer}"):
        compiled = tw.compile(onnx.parser.parse_model(f"{imports} {graph} {functions}"))
        x = floats(3)
        np.testing.assert_array_equal(compiled(x, np.array(True)), -x * x)


def test_outputs_may_be_stated_without_a_type():
    made = model("g (float[n] x) => (float[n] y) { t = Relu(x)\n y = Abs(t)\n s = Shape(x) }")
    del made.graph.output[:]
    made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ("y", "t", "s"))
    found = tw.compile(made).run({"x": np.float32([-1, 2])})
    assert {name: value.tolist() for name, value in found.items()} == {
        "y": [0, 2], "t": [0, 2], "s": [2]
    }  # fmt: skip


def test_operands_of_two_types_are_named():
    text = "g (float[n] x, int64[n] i) => (float[n] y) { y = Div(x, i) }"
    with pytest.raises(InvalidModelError) as caught:
        tw.compile(model(text))
    assert 'Input 0 ("x") is of type float32' in str(caught.value)
    assert 'input 1 ("i") of type int64' in str(caught.value)
    assert "Cast" in str(caught.value.hint)


@pytest.mark.parametrize("dims", [None, {"t": (0, 63)}])
def test_a_constant_is_read_at_a_size(dims):
    """The positions of a decoder with a cache: one row, at the length so far."""
    text = "g (float[t,5] x) => (float[5] y) { s = Shape(x)\n t = Gather(s, k)\n y = Gather(w, t) }"
    proto, table = model(text), floats(64, 5)
    proto.graph.initializer.append(numpy_helper.from_array(table, "w"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(0), "k"))
    compiled = tw.compile(proto, dims=dims)
    for size in (0, 5, 63):
        assert np.array_equal(compiled.run({"x": floats(size, 5)})["y"], table[size])
    with pytest.raises(tw.TilewrightError):
        compiled.run({"x": floats(64, 5)})


@pytest.mark.parametrize("dims", [None, {"s": (0, 32), "p": (0, 32)}])
def test_a_constant_is_cut_at_sizes(dims):
    text = """g (float[s,5] x, float[p,5] q) => (float[a,5] y) <int64[1] z = {0}> {
        s = Shape<start=0, end=1>(x)
        p = Shape<start=0, end=1>(q)
        e = Add(s, p)
        y = Slice(w, p, e, z)
    }"""
    proto = model(text)
    proto.graph.initializer.append(numpy_helper.from_array(floats(64, 5), "w"))
    feeds = [{"x": floats(s, 5), "q": floats(p, 5)} for s, p in ((5, 3), (1, 0), (0, 7), (32, 32))]
    assert_as_reference(proto, *feeds, dims=dims)


def test_a_size_copied_at_run_time_is_refused_and_not_guessed():
    """By the standard a size that is 0 only at run time copies the operand's."""
    text = """g (float[3,4] x, float[m] y) => (float[a,b] z) <int64[1] l = {-1}> {
        s = Shape(y)
        t = Concat<axis=0>(s, l)
        z = Reshape(x, t)
    }"""
    assert_as_reference(text, {"x": floats(3, 4), "y": floats(3)})
    with pytest.raises(DimensionError, match="number of elements differs"):
        tw.compile(model(text)).run({"x": floats(3, 4), "y": floats(0)})


def test_an_index_is_not_read_by_a_loop_that_does_not_run():
    text = "g (float[n] x, int64[m,1] i) => (float[m] y) { y = GatherND(x, i) }"
    assert_as_reference(text, {"x": floats(4), "i": np.array([[1], [2]])})
    got = tw.compile(model(text)).run({"x": floats(0), "i": integers(0, 1)})["y"]
    assert got.shape == (0,)


def test_a_size_beyond_the_default_range_says_how_to_allow_it():
    compiled = tw.compile(model("g (float[n] x) => (float[n] y) { y = Relu(x) }"))
    with pytest.raises(DimensionError) as caught:
        compiled.run({"x": floats(65537)})
    assert "outside the default range 0..65536" in str(caught.value)
    assert 'dims={"n": (0, 65537)}' in str(caught.value)
    (row,) = compiled.dimensions
    assert (row.origin, row.reason) == ("default", "")


def test_the_lower_end_of_an_open_range_is_declared_and_not_needed() -> None:
    """The model needs nothing of s."""
    relu = model("g (float[s] x) => (float[s] y) { y = Relu(x) }")
    compiled = tw.compile(relu, dims={"s": (4, None)})
    with pytest.raises(DimensionError, match=r"outside the declared range 4\.\.65536"):
        compiled(floats(3))
    compiled(floats(4))


def test_a_size_beyond_what_the_model_implies_says_why(tmp_path):
    text = "g (float[n] x) => (float[n] y) <float[5] c = {1., 2., 3., 4., 5.}> { y = Add(x, c) }"
    text = text.replace("y = Add(x, c)", "s = Shape(x)\n r = Slice(c, z, s)\n y = Add(x, r)")
    proto = model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0]), "z"))
    tw.compile(proto).save(tmp_path / "m.tw")
    compiled = tw.load(tmp_path / "m.tw")
    (row,) = compiled.dimensions
    assert (row.high, row.origin) == (5, "model")
    assert row.reason.startswith('Add "y"')
    with pytest.raises(DimensionError, match=r'0\.\.5.* which the model implies: Add "y"'):
        compiled.run({"x": floats(6)})


@pytest.mark.parametrize(
    ("graph", "shape"),
    [
        ("g (float[3, n] x) => (float[3, n] y) { y = Softmax (x) }", (3, 0)),
        (
            "g (uint8[3, n] x, uint8[n, 5] w) => (int32[3, 5] y) { y = MatMulInteger (x, w) }",
            (3, 5),
        ),
    ],
)
def test_an_axis_may_be_declared_to_be_empty(graph: str, shape: tuple[int, ...]) -> None:
    compiled = tw.compile(model(graph), dims={"n": 0}, levels=["x86-64"])
    inputs = [np.empty([int(size) for size in spec.shape], spec.dtype) for spec in compiled.inputs]
    result = compiled(*inputs)
    assert result.shape == shape and not result.any()


def test_attention_of_one_query_and_one_feature() -> None:
    """The rows behind the product have no axis of their own."""
    graph = """g (float[a, 1, 1] q, float[a, 5, 1] k, float[a, 5, 1] v) => (float[a, 1, 1] y) {
        t = Transpose <perm = [0, 2, 1]> (k)
        m = MatMul (q, t)
        s = Softmax (m)
        y = MatMul (s, v)
    }"""
    assert_as_reference(graph, {"q": floats(2, 1, 1), "k": floats(2, 5, 1), "v": floats(2, 5, 1)})


def test_a_transform_without_points_is_refused() -> None:
    graph = "g (float[3, n, 1] x) => (float[3, n, 2] y) { y = DFT <axis = 1> (x) }"
    with pytest.raises(InvalidModelError, match="at least one point"):
        tw.compile(model(graph), dims={"n": 0})


def test_a_size_of_too_many_steps_for_the_limit_of_recursion_says_what_to_do() -> None:
    count = 125
    steps = "".join(
        f"""
        a{i} = Add (t{i}, one)
        m{i} = Mul (a{i}, t0)
        r{i} = Mod (m{i}, seven)
        t{i + 1} = Max (r{i}, one)"""
        for i in range(count)
    )
    graph = f"""g (float[a, b] x) => (float[c, d] y)
    <int64[1] one = {{1}}, int64[1] seven = {{7}}, float[1] o = {{1}}> {{
        t0 = Shape (x)
        {steps}
        y = Expand (o, t{count})
    }}"""
    with pytest.raises(UnsupportedError, match="limit on recursion") as caught:
        tw.compile(model(graph), levels=["x86-64"])
    assert "sys.setrecursionlimit" in (caught.value.hint or "")


@pytest.mark.parametrize("kind", [0, onnx.TensorProto.FLOAT])
def test_an_output_that_is_an_input_has_its_type(kind: int) -> None:
    proto = model("g (float[n] x) => (x, float[n] y) { y = Neg(x) }")
    if kind:
        proto.graph.output[0].type.tensor_type.elem_type = kind
    kept = proto.SerializeToString()
    got = tw.compile(proto).run({"x": floats(3)})
    np.testing.assert_array_equal(got["x"], floats(3))
    assert proto.SerializeToString() == kept


@pytest.mark.parametrize("outputs", ["float[n] y", "float[n] y, string[k] z"])
def test_a_loop_carries_strings_whether_they_are_read_or_not(outputs: str) -> None:
    text = f"""g (float[n] x, int64 turns, string[k] s) => ({outputs}) {{
        y, z = Loop(turns, , x, s)<
            body = b (int64 i, bool c, float[n] a, string[k] t) => (bool d, float[n] p, string[k] q)
            {{ d = Identity(c)  p = Neg(a)  q = Identity(t) }}
        >
    }}"""
    feed = {"x": floats(3), "turns": np.array(3), "s": np.array(["a", "b"], object)}
    got = tw.compile(model(text)).run(feed)
    np.testing.assert_array_equal(got["y"], -feed["x"])
    assert [*got.get("z", feed["s"])] == ["a", "b"]


def test_bands_of_frequencies_may_be_counted_in_a_call() -> None:
    text = """g (int64 bands, int64 points, int64 rate) => (y)
        <float low = {20.0}, float high = {3000.0}> {
            m = MelWeightMatrix(bands, points, rate, low, high)
            y = Neg(m)
        }"""
    feeds = [
        {"bands": np.array(b), "points": np.array(p), "rate": np.array(8000)}
        for b, p in ((8, 16), (1, 9))
    ]
    assert_as_reference(text, *feeds)
