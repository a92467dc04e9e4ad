"""Files that are no model, broken models, and models changed at random: only our own errors."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import helper

from support.onnx_models import INT64, model, tensor
from tilewright.frontend.onnx import import_model
from tilewright.support.errors import InvalidModelError, TilewrightError, UnsupportedError

NODE = helper.make_node


def good():
    nodes = [
        NODE("Shape", ["x"], ["shape"]),
        NODE("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        NODE("Relu", ["c"], ["r"]),
        NODE("Reshape", ["r", "shape"], ["v"]),
        NODE("Softmax", ["v"], ["s"], axis=-1),
        NODE("ReduceMean", ["s", "axes"], ["y"]),
    ]
    weights = {"w": np.ones((2, 2, 3, 3), np.float32), "axes": np.array([1])}
    return model(
        nodes, [tensor("x", ["n", 2, "h", "w"])], [tensor("y", [None] * 4)], weights=weights
    )


def test_the_model_itself_is_fine():
    assert import_model(good()).report.fallbacks == ()


@pytest.mark.parametrize("data", [b"", b"\0", b"PK\3\4 not a model", b"\x08\x07", b"x" * 1000])
def test_bytes_that_are_no_model(data):
    with pytest.raises(InvalidModelError):
        import_model(data)


def test_paths_that_are_no_model(tmp_path):
    for path in (tmp_path, tmp_path / "none.onnx", tmp_path / "a\0b"):
        with pytest.raises(InvalidModelError) as caught:
            import_model(path)
        assert caught.value.where
    with pytest.raises(InvalidModelError):
        import_model(3)  # type: ignore[arg-type]


def test_outputs_of_one_name_are_refused():
    proto = good()
    proto.graph.output.add().CopyFrom(proto.graph.output[0])
    with pytest.raises(TilewrightError, match='Two outputs of the graph are called "y"'):
        import_model(proto)


def test_every_truncation_is_refused():
    data = good().SerializeToString()
    for length in range(0, len(data), 7):
        with pytest.raises(TilewrightError):
            import_model(data[:length])


def broken(change):
    proto = good()
    change(proto)
    return proto


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.ClearField("graph"),
        lambda m: m.graph.ClearField("output"),
        lambda m: m.graph.ClearField("node"),
        lambda m: m.ClearField("opset_import"),
        lambda m: m.graph.node[2].input.__setitem__(0, "nowhere"),
        lambda m: m.graph.node[2].input.__setitem__(0, "y"),
        lambda m: m.graph.node[2].output.__setitem__(0, "c"),
        lambda m: m.graph.output[0].__setattr__("name", "nowhere"),
        lambda m: m.graph.input[0].ClearField("type"),
        lambda m: m.graph.node[1].attribute[0].ints.append(-1),
        lambda m: m.graph.node[1].attribute[0].__setattr__("type", onnx.AttributeProto.STRING),
        lambda m: m.graph.initializer[0].dims.__setitem__(0, 100),
        lambda m: m.graph.initializer[0].dims.__setitem__(0, -2),
        lambda m: m.graph.initializer[0].__setattr__("data_type", 99),
        lambda m: m.graph.initializer[0].__setattr__("raw_data", b"abc"),
        lambda m: m.graph.initializer.append(m.graph.initializer[0]),
        lambda m: m.graph.output[0].type.tensor_type.__setattr__("elem_type", INT64),
    ],
)
def test_broken_models_are_invalid(change):
    with pytest.raises(InvalidModelError) as caught:
        import_model(broken(change))
    assert caught.value.where or caught.value.hint


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.opset_import[0].__setattr__("version", 9999),
        lambda m: m.graph.node[2].__setattr__("op_type", "Rely"),
        lambda m: m.graph.node[2].__setattr__("domain", "com.example"),
    ],
)
def test_unknown_operators_and_opsets(change):
    with pytest.raises(TilewrightError):
        import_model(broken(change))


def test_all_unknown_operators_are_listed_at_once():
    nodes = [NODE("One", ["x"], ["a"], domain="d"), NODE("Two", ["a"], ["y"], domain="d")]
    proto = model(nodes, [tensor("x", ["n"])], [tensor("y", ["n"])], opsets={"d": 1})
    with pytest.raises(UnsupportedError, match=r"not supported.* d::One \(1\), d::Two \(1\)"):
        import_model(proto)
    for made in proto.graph.node:
        made.domain = "com.microsoft"
    proto.opset_import.add(domain="com.microsoft", version=1)
    with pytest.raises(UnsupportedError, match="before ONNX Runtime's tools"):
        import_model(proto)


def test_an_operator_that_only_the_reference_has_needs_the_rank_of_its_results():
    tree = NODE("TreeEnsembleClassifier", ["x"], ["y", "z"], domain="ai.onnx.ml")
    result = helper.make_tensor_value_info("y", onnx.TensorProto.INT64, None)
    proto = model([tree], [tensor("x", ["n"])], [result], opsets={"ai.onnx.ml": 1})
    with pytest.raises(UnsupportedError, match=r"(?s)rank .*not compiled.*outside of the model"):
        import_model(proto)


def test_maps_are_told_from_damage():
    zipped = NODE("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    result = helper.make_empty_tensor_value_info("y")
    kind = result.type.sequence_type.elem_type.map_type
    kind.key_type = onnx.TensorProto.INT64
    kind.value_type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    proto = model([zipped], [tensor("x", ["n", 2])], [result], opsets={"ai.onnx.ml": 3})
    with pytest.raises(UnsupportedError, match=r"(?s)maps are not supported.*\"y\".*zipmap"):
        import_model(proto)


def test_a_wrong_attribute_of_a_compiled_operator():
    proto = good()
    proto.graph.node[4].attribute[0].i = 17
    with pytest.raises(InvalidModelError):
        import_model(proto)


def mutations(count, seed):
    """Copies of the model with some bytes changed, removed or repeated."""
    source = random.Random(seed)
    data = good().SerializeToString()
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(source.choice((1, 1, 2, 5))):
            place = source.randrange(len(changed))
            match source.randrange(4):
                case 0:
                    changed[place] = source.randrange(256)
                case 1:
                    changed[place] ^= 1 << source.randrange(8)
                case 2:
                    del changed[place : place + source.randrange(1, 9)]
                case _:
                    changed[place:place] = changed[place : place + source.randrange(1, 9)]
        yield bytes(changed)


def test_a_dimension_whose_name_is_no_text():
    data = model([NODE("Relu", ["x"], ["y"])], [tensor("x", ["rows"])], [tensor("y", ["rows"])])
    with pytest.raises(InvalidModelError):
        import_model(data.SerializeToString().replace(b"rows", b"row\xde"))


@pytest.mark.parametrize("seed", range(4))
def test_random_changes_raise_nothing_else(seed):
    outcomes = {True: 0, False: 0}
    for data in mutations(60, seed):
        try:
            import_model(data)
            outcomes[True] += 1
        except TilewrightError:
            outcomes[False] += 1
    assert outcomes[False] > 0
