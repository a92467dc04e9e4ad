"""From nodes to primitives: shape arithmetic, functions, control flow, the reference, reports."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from support.onnx_models import BOOL, INT64, model, run, tensor
from tilewright.compile import compile_model
from tilewright.frontend.onnx import Dim, StructuralInputs, import_model, importer
from tilewright.frontend.onnx.values import tensor_array
from tilewright.ir.primitives import Broadcast, Concat, Constant, Opaque, Reshape, Slice
from tilewright.ir.verify import problems
from tilewright.rewrite import simplify
from tilewright.support.errors import (
    DimensionError,
    InputError,
    InternalError,
    InvalidModelError,
    UnsupportedError,
)

NODE = helper.make_node


def x_like(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_shape_arithmetic_becomes_symbolic_sizes():
    """Reshape [b, s, 12] to [b * s, 3, 4] by Shape, Gather, Mul, Concat."""
    nodes = [
        NODE("Shape", ["x"], ["shape"]),
        NODE("Gather", ["shape", "zero"], ["b"]),
        NODE("Gather", ["shape", "one"], ["s"]),
        NODE("Mul", ["b", "s"], ["bs"]),
        NODE("Unsqueeze", ["bs", "axes"], ["bs1"]),
        NODE("Concat", ["bs1", "rest"], ["target"], axis=0),
        NODE("Reshape", ["x", "target"], ["y"]),
    ]
    weights = {
        "zero": np.array(0),
        "one": np.array(1),
        "axes": np.array([0]),
        "rest": np.array([3, 4]),
    }
    proto = model(
        nodes, [tensor("x", ["b", "s", 12])], [tensor("y", [None, 3, 4])], weights=weights
    )
    graph, report = import_model(proto)
    assert [str(s) for s in graph.outputs[0][1].shape] == ["b*s", "3", "4"]
    assert graph.guards == () and graph.bindings == () and report.fallbacks == ()
    for b, s in ((0, 3), (2, 0), (1, 1), (2, 5)):
        x = x_like(b, s, 12)
        assert np.array_equal(run(graph, x=x)["y"], x.reshape(b * s, 3, 4))


def test_sizes_that_prove_equal_late_leave_no_reshape():
    """Pixels taken apart by their parity, as detectors begin: halves of an axis that is even."""
    source = """<ir_version: 10, opset_import: ["": 23]>
    halves (float[n,w] x) => (float[a,b] y) <int64[1] zero = {0}, int64[1] one = {1},
            int64[1] two = {2}, int64[1] end = {9223372036854775807}> {
        even = Slice(x, zero, end, one, two)
        odd = Slice(x, one, end, one, two)
        y = Concat<axis = 0>(even, odd)
    }"""
    graph = import_model(parser.parse_model(source)).graph
    (slices,) = {n.inputs for n in graph.nodes() if isinstance(n.primitive, Concat)}
    assert len({n.shape for n in graph.nodes() if isinstance(n.primitive, Slice)}) == 1
    kept = simplify(graph).nodes()
    assert len(slices) == 2 and not any(isinstance(n.primitive, Reshape) for n in kept)
    for rows, columns in ((0, 4), (3, 0), (2, 2), (3, 10)):
        x = x_like(rows, columns)
        assert np.array_equal(run(graph, x=x)["y"], np.concatenate([x[:, ::2], x[:, 1::2]]))
    with pytest.raises(DimensionError, match='"w" = 3'):
        run(graph, x=x_like(2, 3))


def test_nothing_is_broadcast_to_the_size_that_a_dimension_was_given():
    """A batch that the caller fixes leaves the products of integers that are looked for."""
    source = """<ir_version: 10, opset_import: ["": 21]>
    quantised (uint8[n,4,h,w] x) => (uint8[n,3,a,b] y)
            <float s = {0.5}, uint8 z = {7}, int8 none = {0}, int8[3,4,1,1] f> {
        y = QLinearConv(x, s, z, f, s, none, s, z)
    }"""
    proto = parser.parse_model(source)
    del proto.graph.value_info[:]
    filters = np.arange(12, dtype=np.int8).reshape(3, 4, 1, 1)
    proto.graph.initializer.append(numpy_helper.from_array(filters, "f"))
    for dims in ({}, {"n": Dim(1, 1)}, {"n": Dim(1, 1), "h": Dim(5, 5), "w": Dim(6, 6)}):
        graph = import_model(proto, dims=dims).graph
        repeated = [n for n in graph.nodes() if isinstance(n.primitive, Broadcast)]
        assert repeated and all(n.shape != n.inputs[0].shape for n in repeated)
        x = np.arange(120, dtype=np.uint8).reshape(1, 4, 5, 6)
        sums = np.einsum("oi,nihw->nohw", filters[..., 0, 0].astype(int), x.astype(int) - 7)
        expected = np.clip(np.rint(sums / 2) + 7, 0, 255).astype(np.uint8)
        assert np.array_equal(run(graph, x=x)["y"], expected)


def test_a_shape_of_run_time_values_is_bound():
    nodes = [NODE("Reshape", ["x", "target"], ["y"])]
    proto = model(
        nodes, [tensor("x", ["n"]), tensor("target", [2], INT64)], [tensor("y", [None, None])]
    )
    graph, report = import_model(proto)
    assert report.fallbacks == () and graph.bindings
    assert problems(graph) == []
    x = x_like(6)
    assert run(graph, x=x, target=np.array([2, 3]))["y"].shape == (2, 3)


def test_small_constant_results_are_folded():
    nodes = [
        NODE("Cast", ["a"], ["f"], to=1),
        NODE("Mul", ["f", "h"], ["scaled"]),
        NODE("Add", ["x", "scaled"], ["y"]),
    ]
    weights = {"a": np.array([1, 2]), "h": np.array([0.5], dtype=np.float32)}
    graph, _ = import_model(
        model(nodes, [tensor("x", ["n", 2])], [tensor("y", ["n", 2])], weights=weights)
    )
    found = [n.primitive.array.tolist() for n in graph.nodes() if isinstance(n.primitive, Constant)]
    assert found == [[0.5, 1.0]]


def local_function():
    return helper.make_function(
        "own",
        "Scaled",
        ["x", "bias"],
        ["y"],
        [
            NODE("Constant", [], ["c"]),
            NODE("Mul", ["x", "c"], ["m"]),
            NODE("Sum", ["m", "bias"], ["y"]),
        ],
        [helper.make_opsetid("", 21)],
        attributes=["factor"],
    )


def test_functions_of_the_model_with_attributes_and_an_omitted_operand():
    function = local_function()
    reference = function.node[0].attribute.add()
    reference.name, reference.ref_attr_name = "value_float", "factor"
    reference.type = onnx.AttributeProto.FLOAT
    nodes = [
        NODE("Scaled", ["x", "x"], ["a"], domain="own", factor=2.0),
        NODE("Scaled", ["a", ""], ["y"], domain="own", factor=-1.0),
    ]
    proto = model(
        nodes, [tensor("x", ["n"])], [tensor("y", ["n"])], functions=[function], opsets={"own": 1}
    )
    graph, report = import_model(proto)
    assert report.fallbacks == ()
    x = x_like(5)
    assert np.allclose(run(graph, x=x)["y"], -(2 * x + x))


def test_functions_that_call_themselves_end():
    function = helper.make_function(
        "own", "Round", ["x"], ["y"], [NODE("Round", ["x"], ["y"], domain="own")],
        [helper.make_opsetid("own", 1)],
    )  # fmt: skip
    proto = model(
        [NODE("Round", ["x"], ["y"], domain="own")], [tensor("x", [1])], [tensor("y", [1])],
        functions=[function], opsets={"own": 1},
    )  # fmt: skip
    with pytest.raises(InvalidModelError):
        import_model(proto)


def branches(then, otherwise):
    return {
        name: helper.make_graph([node], name, [], [tensor(node.output[0], None)])
        for name, node in (("then_branch", then), ("else_branch", otherwise))
    }


def test_an_if_that_is_decided_by_constants_is_inlined():
    nodes = [
        NODE("Size", ["shape_of_x"], ["rank"]),
        NODE("Equal", ["rank", "two"], ["is_two"]),
        NODE(
            "If",
            ["is_two"],
            ["y"],
            **branches(NODE("Neg", ["x"], ["a"]), NODE("Abs", ["x"], ["b"])),
        ),
    ]
    nodes.insert(0, NODE("Shape", ["x"], ["shape_of_x"]))
    proto = model(
        nodes, [tensor("x", ["n", "m"])], [tensor("y", ["n", "m"])], weights={"two": np.array(2)}
    )
    graph, report = import_model(proto)
    assert report.fallbacks == ()
    x = x_like(2, 3)
    assert np.array_equal(run(graph, x=x)["y"], -x)


def test_an_if_on_data_is_one_node_with_what_it_captures():
    nodes = [
        NODE("Add", ["x", "x"], ["double"]),
        NODE(
            "If",
            ["c"],
            ["y"],
            **branches(NODE("Neg", ["double"], ["a"]), NODE("Abs", ["x"], ["b"])),
        ),
    ]
    proto = model(nodes, [tensor("x", ["n"]), tensor("c", [], BOOL)], [tensor("y", ["n"])])
    graph, report = import_model(proto)
    inside = {"Abs": 1, "Identity": 2, "Neg": 1}  # each branch names its result
    assert report.opaque == {} and report.compiled == {"Add": 1, "If": 1, **inside}
    assert problems(graph) == []
    x = x_like(4)
    assert np.array_equal(run(graph, x=x, c=np.array(True))["y"], -2 * x)
    assert np.array_equal(run(graph, x=x, c=np.array(False))["y"], np.abs(x))


def test_a_loop_collects_slices_whose_count_is_known_only_then():
    body = helper.make_graph(
        [
            NODE("Identity", ["going"], ["still"]),
            NODE("Add", ["state", "x"], ["next"]),
            NODE("Identity", ["next"], ["slice"]),
        ],
        "body",
        [tensor("i", [], INT64), tensor("going", [], BOOL), tensor("state", None)],
        [tensor("still", [], BOOL), tensor("next", None), tensor("slice", None)],
    )
    nodes = [NODE("Loop", ["count", "", "x"], ["last", "all"], body=body)]
    proto = model(
        nodes,
        [tensor("x", ["n"]), tensor("count", [], INT64)],
        [tensor("last", ["n"]), tensor("all", [None, "n"])],
    )
    graph, _ = import_model(proto)
    shapes = {name: [str(s) for s in value.shape] for name, value in graph.outputs}
    assert shapes["last"] == ["n"] and shapes["all"][1] == "n"
    x = x_like(3)
    results = run(graph, x=x, count=np.array(2))
    assert np.allclose(results["last"], 3 * x)
    assert np.allclose(results["all"], np.stack([2 * x, 3 * x]))


def test_data_dependent_sizes_are_fresh_symbols():
    nodes = [NODE("NonZero", ["x"], ["where"]), NODE("Neg", ["where"], ["y"])]
    graph, report = import_model(
        model(nodes, [tensor("x", ["n"])], [tensor("y", [1, None], INT64)])
    )
    assert report.opaque == {} and report.compiled == {"NonZero": 1, "Neg": 1}
    size = graph.outputs[0][1].shape[1]
    assert not size.is_constant and str(size) != "n"
    assert problems(graph) == []
    assert run(graph, x=np.array([0, 3, 0, 4], np.float32))["y"].tolist() == [[-1, -3]]


def test_a_size_that_data_decides_is_compared_with_one_of_an_input():
    """The node that decides it keeps it, though both are equal wherever the call goes on."""
    nodes = [NODE("NonZero", ["x"], ["where"]), NODE("ScatterND", ["where", "first", "u"], ["y"])]
    weights = {"first": np.zeros((1, 1), np.int64)}
    inputs = [tensor("x", ["n"]), tensor("u", [1, "d"], INT64)]
    compiled = compile_model(
        model(nodes, inputs, [tensor("y", [1, None], INT64)], weights=weights), levels=["x86-64"]
    )
    x = np.array([0, 3, 0, 4], np.float32)
    assert compiled.run({"x": x, "u": np.array([[7, 8]])})["y"].tolist() == [[7, 8]]
    with pytest.raises(DimensionError, match="updates do not fit"):
        compiled.run({"x": x, "u": np.array([[7, 8, 9]])})


def test_operators_of_a_definition_that_is_given_up_are_forgotten(monkeypatch):
    """Their sizes would bear the names that sizes of the operator itself bear then."""
    given_up = helper.make_function(
        "",
        "Unique",
        ["v"],
        ["w"],
        [NODE("Unique", ["v"], ["u"]), NODE("NoSuchOperator", ["u"], ["w"])],
        [helper.make_opsetid("", 18)],
    )

    def definition(schema, node, *_):
        return given_up if node.name == "outer" else None

    monkeypatch.setattr(importer, "definition", definition)
    nodes = [
        NODE("Relu", ["x"], ["r"]),
        NODE("Unique", ["r"], ["y", "first"], name="outer"),
        NODE("Shape", ["y"], ["z"]),
    ]
    outputs = [tensor("z", [1], INT64), tensor("first", [None], INT64)]
    graph, report = import_model(model(nodes, [tensor("x", ["n"])], outputs))
    assert report.opaque == {} and report.compiled["Unique"] == 1
    called = [n for n in graph.nodes() if isinstance(n.primitive, Opaque)]
    assert len(called) == 1
    found = run(graph, x=np.array([-1, 3, 2, 3], np.float32))
    assert found["z"].tolist() == [3] and found["first"].tolist() == [0, 2, 1]


def test_operators_that_onnx_defines_by_others_are_expanded():
    """CenterCropPad and the like have no rule of their own where their definition serves."""
    nodes = [NODE("Celu", ["x"], ["y"], alpha=2.0)]
    graph, report = import_model(model(nodes, [tensor("x", ["n"])], [tensor("y", ["n"])]))
    assert report.fallbacks == ()
    x = x_like(7)
    expected = np.maximum(x, 0) + np.minimum(0, 2 * (np.exp(x / 2) - 1))
    assert np.allclose(run(graph, x=x)["y"], expected, rtol=1e-5)


def test_strings_and_sequences_pass_between_references_only():
    nodes = [
        NODE("SequenceConstruct", ["w", "x"], ["s"]),
        NODE("SequenceAt", ["s", "at"], ["z"]),
        NODE("Neg", ["z"], ["y"]),
    ]
    inputs = [tensor("x", ["n"]), tensor("w", ["m"]), tensor("at", [], INT64)]
    proto = model(nodes, inputs, [tensor("y", ["k"])])
    graph, report = import_model(proto)
    assert report.opaque == {"SequenceAt": 1, "SequenceConstruct": 1}
    x = x_like(3)
    assert np.array_equal(run(graph, x=x, w=x_like(2), at=np.array(1))["y"], -x)


def test_fallback_error_lists_every_operator():
    nodes = [
        NODE("Det", ["x"], ["a"], name="first"),
        NODE("RandomNormalLike", ["x"], ["b"], name="second"),
    ]
    outputs = [tensor("a", []), tensor("b", ["n", "n"])]
    proto = model(nodes, [tensor("x", ["n", "n"])], outputs)
    with pytest.raises(UnsupportedError, match=r'(?s)"first".*"second"'):
        import_model(proto, fallback="error")
    with pytest.raises(InputError):
        import_model(proto, fallback="maybe")


def test_an_operator_without_a_rule_of_constants_alone_is_computed_when_compiling():
    """As in the features of speech, whose filters depend on nothing of a call."""
    proto = parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        g (float[n, 17] power) => (float[n, 8] y)
        <int64 bins = {8}, int64 length = {32}, int64 rate = {16000}, float low = {0},
         float high = {8000}> {
            filters = MelWeightMatrix(bins, length, rate, low, high)
            y = MatMul(power, filters)
        }""")
    graph, report = import_model(proto, fallback="error")
    assert not report.fallbacks and report.compiled["MelWeightMatrix"] == 1
    assert not any(isinstance(n.primitive, Opaque) for n in graph.nodes())
    power = x_like(3, 17)
    (want,) = ReferenceEvaluator(proto).run(None, {"power": power})
    np.testing.assert_allclose(run(graph, power=power)["y"], want, rtol=1e-5)


def test_random_operators_are_not_shared():
    nodes = [NODE("RandomNormalLike", ["x"], [n]) for n in ("a", "b")]
    graph, _ = import_model(
        model(nodes, [tensor("x", ["n"])], [tensor("a", ["n"]), tensor("b", ["n"])])
    )
    assert len({n for n in graph.nodes() if isinstance(n.primitive, Opaque)}) == 2
    results = run(graph, x=x_like(16))
    assert not np.array_equal(results["a"], results["b"])


def test_structural_inputs_are_named_and_can_be_constants():
    nodes = [NODE("ReduceSum", ["x", "axes"], ["y"], keepdims=0)]
    proto = model(
        nodes, [tensor("x", ["n", "m"]), tensor("axes", [1], INT64)], [tensor("y", [None])]
    )
    _, report = import_model(proto)
    assert report.structural_inputs == ("axes",)
    graph, report = import_model(proto, constants={"axes": np.array([1])})
    assert report.fallbacks == () and len(graph.inputs) == 1
    x = x_like(3, 4)
    assert np.allclose(run(graph, x=x)["y"], x.sum(1), rtol=1e-5)
    with pytest.raises(InputError):
        import_model(proto, constants={"axis": np.array([1])})
    with pytest.raises(InputError):
        import_model(proto, constants={"axes": np.array([1.0])})
    with pytest.raises(InputError):
        import_model(proto, constants={"axes": np.array([[1]])})


def test_scores_of_a_vector_machine_are_read_by_what_follows():
    proto = model(
        [
            NODE(
                "SVMClassifier", ["x"], ["y", "s"], domain="ai.onnx.ml", kernel_type="RBF",
                kernel_params=[0.5, 0.0, 3.0], support_vectors=[0.0, 1.0, 1.0, -1.0],
                vectors_per_class=[1, 1], coefficients=[1.0, -1.0], rho=[0.25],
                classlabels_ints=[4, 7],
            ),
            NODE("Neg", ["s"], ["z"]),
        ],
        [tensor("x", ["n", 2])],
        [tensor("y", ["n"], INT64), tensor("z", None)],
        opsets={"ai.onnx.ml": 3},
    )  # fmt: skip
    graph, _ = import_model(proto)
    assert [value.rank for _, value in graph.outputs] == [1, 2]
    x = np.array([[0, 1], [1, -1], [2, 0]], np.float32)
    expected = ReferenceEvaluator(proto).run(None, {"x": x})
    for made, wanted in zip(run(graph, x=x).values(), expected, strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-6)


@pytest.mark.parametrize("kind", ["Classifier", "Regressor"])
def test_scores_of_trees_have_two_axes(kind):
    parts = {"classlabels_int64s": [4, 7]} if kind == "Classifier" else {"n_targets": 2}
    prefix = "class" if kind == "Classifier" else "target"
    of_nodes = {"treeids": [0, 0, 0], "nodeids": [0, 1, 2], "featureids": [1, 0, 0],
                "values": [0.5, 0.0, 0.0], "modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
                "truenodeids": [1, 0, 0], "falsenodeids": [2, 0, 0]}  # fmt: skip
    leaves = {"treeids": [0, 0], "nodeids": [1, 2], "ids": [0, 1], "weights": [0.75, 0.25]}
    parts |= {f"nodes_{name}": values for name, values in of_nodes.items()}
    parts |= {f"{prefix}_{name}": values for name, values in leaves.items()}
    names = ["y", "s"][kind == "Regressor" :]
    tree = NODE(f"TreeEnsemble{kind}", ["x"], names, domain="ai.onnx.ml", **parts)
    outputs = [tensor("z", None)]
    opsets = {"ai.onnx.ml": 1}
    proto = model(
        [tree, NODE("Neg", ["s"], ["z"])], [tensor("x", ["n", 2])], outputs, opsets=opsets
    )
    graph, _ = import_model(proto)
    assert graph.outputs[0][1].rank == 2
    x = np.array([[0, 0.25], [0, 0.75]], np.float32)
    expected = -np.array([[0.75, 0], [0, 0.25]], np.float32)
    np.testing.assert_array_equal(run(graph, x=x)["z"], expected)


def test_rank_that_an_input_decides_asks_for_a_constant():
    nodes = [NODE("ReduceSum", ["x", "axes"], ["s"], keepdims=0), NODE("Neg", ["s"], ["y"])]
    output = tensor("y", [None])
    output.type.tensor_type.ClearField("shape")
    proto = model(nodes, [tensor("x", ["n", "m"]), tensor("axes", [1], INT64)], [output])
    with pytest.raises(StructuralInputs) as caught:
        import_model(proto)
    assert caught.value.inputs == ("axes",)


def test_rank_that_a_size_decides_asks_for_a_range():
    """As older exporters write ``torch.squeeze`` of an axis that may have any size."""
    proto = parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        g (float[n, k, 3] x) => (float[] y) {
            size = Shape<start = 1, end = 2>(x)
            one = Constant<value = int64[1] {1}>()
            alone = Equal(size, one)
            y = If(alone) <then_branch = a () => (float[] thin) {
                thin = Squeeze(x, one)
            }, else_branch = b () => (float[] same) {
                same = Identity(x)
            }>
        }""")
    with pytest.raises(UnsupportedError, match=r'Give "k" a range .* always true or always false'):
        import_model(proto)
    for low, high, rank in ((1, 1, 2), (2, 8, 3)):
        graph, _ = import_model(proto, dims={"k": Dim(low, high)})
        assert graph.outputs[0][1].rank == rank


def test_sizes_that_an_export_baked_in_are_reported():
    nodes = [NODE("Reshape", ["x", "target"], ["y"], name="view")]
    proto = model(
        nodes, [tensor("x", ["batch", "seq", 8])], [tensor("y", [None] * 3)],
        weights={"target": np.array([-1, 16, 8])},
    )  # fmt: skip
    _, report = import_model(proto)
    assert any("view" in b.where and "16" in b.message and "seq" in b.message for b in report.baked)
    _, clean = import_model(
        model(nodes, [tensor("x", ["batch", "seq", 8])], [tensor("y", [None] * 2)],
              weights={"target": np.array([-1, 8])})
    )  # fmt: skip
    assert clean.baked == ()


def test_a_weight_that_pins_a_dimension_is_reported():
    nodes = [NODE("Add", ["x", "table"], ["y"], name="positions")]
    proto = model(
        nodes, [tensor("x", ["batch", "seq"])], [tensor("y", ["batch", "seq"])],
        weights={"table": np.zeros((1, 77), np.float32)},
    )  # fmt: skip
    _, report = import_model(proto)
    assert any("positions" in b.where and "seq" in b.message for b in report.baked)


def test_the_same_model_by_every_kind_of_source(tmp_path):
    proto = model([NODE("Neg", ["x"], ["y"])], [tensor("x", ["n"])], [tensor("y", ["n"])])
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    read = onnx_ir.from_proto(proto)
    exported = SimpleNamespace(model=read)  # as torch.onnx.export returns it
    kinds = [path, str(path), path.read_bytes(), proto, read, exported]
    graphs = [import_model(kind).graph for kind in kinds]
    assert len({g.outputs[0][1] for g in graphs}) == 1  # interned: the very same node


@pytest.mark.parametrize("view", [False, True])
def test_weights_of_a_model_in_memory_can_be_written_to_later(view):
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    given = weights[:]
    given.setflags(write=not view)
    proto = model(
        [NODE("Add", ["x", "w"], ["y"])],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 3])],
        weights={"w": weights},
    )
    source = onnx_ir.from_proto(proto)
    source.graph.initializers["w"].const_value = onnx_ir.Tensor(given, name="w")
    compiled = compile_model(source)
    want = weights.copy()
    weights[:] = -1
    np.testing.assert_array_equal(compiled(np.zeros((2, 3), np.float32)), want)


def test_weights_that_nobody_can_write_to_are_not_copied():
    weights = np.arange(6, dtype=np.float32)
    weights.setflags(write=False)
    tensors = onnx_ir.Tensor(weights, name="w")
    assert np.shares_memory(tensor_array(tensors, "w"), weights)


def test_a_defect_in_a_body_on_trial_is_not_swallowed(monkeypatch):
    branch = helper.make_graph([NODE("Neg", ["x"], ["b"])], "branch", [], [tensor("b", ["n"])])
    node = NODE("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    inputs = [tensor("x", ["n"]), tensor("c", [], BOOL)]
    proto = model([node], inputs, [tensor("y", ["n"])])
    import_model(proto)
    tried = importer.by_rule

    def broken(state, use):
        if use.item.op_type == "Neg":
            raise InternalError("a rule is wrong")
        return tried(state, use)

    monkeypatch.setattr(importer, "by_rule", broken)
    with pytest.raises(InternalError, match="A rule is wrong"):
        import_model(proto)


def test_initializers_that_are_inputs_too_are_constants():
    proto = model(
        [NODE("Add", ["x", "w"], ["y"])], [tensor("x", ["n"]), tensor("w", [1])],
        [tensor("y", ["n"])], weights={"w": np.array([2], np.float32)},
    )  # fmt: skip
    graph, report = import_model(proto)
    assert len(graph.inputs) == 1 and "w" in report.notes[0]
    graph, report = import_model(proto, constants={"w": np.array([3], np.float32)})
    assert run(graph, x=np.ones(2, np.float32))["y"].tolist() == [4, 4] and not report.notes
    proto.ir_version = 3  # where all initializers had to be inputs
    graph, report = import_model(proto)
    assert not report.notes and not report.fixed
    with pytest.raises(InputError, match='no input "w"'):
        import_model(proto, constants={"w": np.array([3], np.float32)})


def test_sparse_initializers_are_dense():
    proto = model(
        [NODE("Add", ["x", "w"], ["y"])], [tensor("x", ["n", 4])], [tensor("y", ["n", 4])]
    )
    sparse = proto.graph.sparse_initializer.add()
    sparse.values.CopyFrom(numpy_helper.from_array(np.array([5, 6], np.float32), name="w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([1, 3])))
    sparse.dims.append(4)
    graph, _ = import_model(proto)
    assert run(graph, x=np.zeros((1, 4), np.float32))["y"].tolist() == [[0, 5, 0, 6]]


@pytest.mark.parametrize(
    ("opset", "node", "weights", "expected"),
    [
        (11, NODE("Squeeze", ["x"], ["y"], axes=[1]), {}, lambda x: x[:, 0]),
        (11, NODE("Softmax", ["x"], ["y"], axis=1), {}, None),
        (6, NODE("Clip", ["x"], ["y"], min=-0.5, max=0.5), {}, lambda x: x.clip(-0.5, 0.5)),
        (6, NODE("Slice", ["x"], ["y"], starts=[1], ends=[3], axes=[2]), {},
         lambda x: x[:, :, 1:3]),
        (6, NODE("Add", ["x", "w"], ["y"], broadcast=1, axis=1), {"w": np.ones(1, np.float32)},
         lambda x: x + 1),
        (10, NODE("TopK", ["x", "w"], ["y", "i"]), {"w": np.array([1])},
         lambda x: x.max(-1, keepdims=True)),
    ],
)  # fmt: skip
def test_operators_of_old_opsets(opset, node, weights, expected):
    proto = model(
        [node], [tensor("x", ["n", 1, "m"])], [tensor("y", None)], weights=weights, opset=opset
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    graph, report = import_model(proto)
    assert report.fallbacks == ()
    x = x_like(3, 1, 4)
    if expected is None:  # softmax over the axes from 1 on together
        flat = np.exp(x.reshape(3, 4))
        want = (flat / flat.sum(1, keepdims=True)).reshape(x.shape)
    else:
        want = expected(x)
    assert np.allclose(run(graph, x=x)["y"], want, rtol=1e-6)


def test_labels_say_where_a_node_comes_from():
    proto = model(
        [NODE("Neg", ["x"], ["y"], name="minus")], [tensor("x", ["n"])], [tensor("y", ["n"])]
    )
    graph, _ = import_model(proto)
    assert graph.label(graph.outputs[0][1]) == 'Neg "minus"'


def test_a_rank_is_told_by_the_type_of_a_cast_behind():
    """Of a loop that inserts in front, which stays with the reference."""
    proto = parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        g (float[n, 4] x, int64 k) => (double[m, 4] y, float total) {
            empty = SequenceEmpty()
            rows = Loop(k, "", empty) <body = b (int64 i, bool on, before) => (bool still, after) {
                still = Identity(on)
                row = Gather<axis = 0>(x, i)
                axis = Constant<value = int64[1] {0}>()
                one = Unsqueeze(row, axis)
                first = Constant<value_int = 0>()
                after = SequenceInsert(before, one, first)
            }>
            joined = ConcatFromSequence<axis = 0>(rows)
            same = Identity(joined)
            y = Cast<to = 11>(same)
            total = ReduceSum<keepdims = 0>(joined)
        }""")
    compiled = compile_model(proto, levels=["x86-64"])
    assert compiled.outputs[0].shape[1] == "4"
    for k in (1, 3):
        x = x_like(5, 4)
        y, total = compiled(x, np.array(k))
        assert y.dtype == np.float64 and np.array_equal(y, x[:k][::-1].astype(np.float64))
        assert np.isclose(total, x[:k].sum())
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedError, match="rank of a result cannot be told"):
        import_model(proto)


def test_the_sizes_of_a_sort_are_those_of_its_operands():
    """As torch.onnx.export writes torch.sort: all elements of an axis are the greatest ones."""
    proto = parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        g (float[n, m, 3] x) => (float[a, b, 3] y, int64[a, b, 3] places) {
            size = Shape<start = 1, end = 2>(x)
            sorted, places = TopK<axis = 1>(x, size)
            y = Add(sorted, x)
        }""")
    graph, report = import_model(proto)
    assert report.opaque == {} and report.compiled["TopK"] == 1
    assert [[str(s) for s in out.shape] for _, out in graph.outputs] == [["n", "m", "3"]] * 2
    assert graph.guards == () and graph.bindings == ()
    for n, m in ((2, 5), (0, 4), (3, 0), (1, 1)):
        x = x_like(n, m, 3)
        assert np.array_equal(run(graph, x=x)["y"], -np.sort(-x, axis=1) + x)


def test_sizes_that_a_later_output_of_an_operator_decides_must_agree():
    """The inverse of Unique picks of rows, whose number it must have; a call checks that."""
    proto = parser.parse_model("""<ir_version: 10, opset_import: ["" : 17]>
        g (int64[m] x, float[n, 5] rows) => (float[k] y, int64[u] values) {
            values, firsts, inverse = Unique(x)
            last = Constant<value_ints = [-1]>()
            places = Unsqueeze(inverse, last)
            y = GatherND<batch_dims = 1>(rows, places)
        }""")
    compiled = compile_model(proto, levels=["x86-64"])
    for values in ([7, 3, 7, 9], [4], []):
        x, rows = np.array(values, np.int64), x_like(len(values), 5)
        y, found = compiled(x, rows)
        wanted, inverse = np.unique(x, return_inverse=True)
        assert np.array_equal(found, wanted)
        assert np.array_equal(y, rows[np.arange(len(values)), inverse])
    with pytest.raises(DimensionError):
        compiled(np.array([1, 2, 3]), x_like(2, 5))


def test_greatest_elements_of_unknown_number_have_the_other_sizes_of_the_data():
    """As in a step of a beam search: the best of all beams, and the rows that they come from."""
    proto = parser.parse_model("""<ir_version: 10, opset_import: ["" : 17]>
        g (float[b, n] scores, float[b, n, t] rows, int64[1] k) => (float[b, c, t] y) {
            best, places = TopK(scores, k)
            last = Constant<value_ints = [-1]>()
            chosen = Unsqueeze(places, last)
            y = GatherND<batch_dims = 1>(rows, chosen)
        }""")
    graph, _ = import_model(proto)
    assert [str(s) for s in graph.outputs[0][1].shape][::2] == ["b", "t"]
    assert graph.guards == ()
    compiled = compile_model(proto, levels=["x86-64"])
    for b, n, t, k in ((2, 5, 3, 2), (1, 1, 1, 1), (0, 4, 2, 3), (2, 3, 0, 1)):
        scores, rows = x_like(b, n), x_like(b, n, t)
        wanted = np.take_along_axis(rows, np.argsort(-scores, axis=1)[:, :k, None], axis=1)
        assert np.array_equal(compiled(scores, rows, np.array([k])), wanted)
