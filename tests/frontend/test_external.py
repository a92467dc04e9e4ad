"""Weights in other files: read from the model's folder only, and checked."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from support.onnx_models import model, run, tensor
from tilewright.frontend.onnx import import_model
from tilewright.frontend.onnx.source import read_model
from tilewright.ir.mapped import is_mapped
from tilewright.support.errors import InvalidModelError

WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4)


def external(proto_tensor, location, **entries):
    proto_tensor.ClearField("raw_data")
    proto_tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        entry = proto_tensor.external_data.add()
        entry.key, entry.value = key, str(value)


def save(folder, location="w.bin", **entries):
    folder.mkdir(exist_ok=True)
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], [tensor("x", ["n", 3])],
        [tensor("y", ["n", 4])], weights={"w": WEIGHTS},
    )  # fmt: skip
    external(proto.graph.initializer[0], location, **entries)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def check(path):
    x = np.eye(3, dtype=np.float32)
    assert np.array_equal(run(import_model(path).graph, x=x)["y"], WEIGHTS)


def test_data_beside_the_model(tmp_path):
    path = save(tmp_path)
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    check(path)


def test_data_at_an_offset_in_a_sub_folder(tmp_path):
    path = save(tmp_path, "data/w.bin", offset=16, length=48)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/w.bin").write_bytes(b"\1" * 16 + WEIGHTS.tobytes() + b"\2" * 8)
    check(path)


def test_data_of_attributes(tmp_path):
    proto = model(
        [helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(WEIGHTS)),
         helper.make_node("MatMul", ["x", "w"], ["y"])],
        [tensor("x", ["n", 3])], [tensor("y", ["n", 4])],
    )  # fmt: skip
    external(proto.graph.node[0].attribute[0].t, "w.bin")
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    check(path)


@pytest.mark.parametrize("location", ["../w.bin", "/etc/hostname", "a/../../w.bin", "", "a\\..\\w"])
def test_places_outside_of_the_folder(tmp_path, location):
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    path = save(tmp_path / "model", location)
    with pytest.raises(InvalidModelError, match="outside"):
        import_model(path)


def test_links_out_of_the_folder(tmp_path):
    path = save(tmp_path / "model")
    (tmp_path / "secret").write_bytes(WEIGHTS.tobytes())
    (tmp_path / "model/w.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidModelError, match="outside"):
        import_model(path)


def test_missing_data_is_named(tmp_path):
    with pytest.raises(InvalidModelError, match="missing") as caught:
        import_model(save(tmp_path))
    assert "w.bin" in str(caught.value) and '"w"' in str(caught.value)


@pytest.mark.parametrize(
    ("size", "entries"),
    [
        (47, {}),
        (48, {"offset": 4}),
        (48, {"length": 44}),
        (60, {"length": 60}),
        (48, {"offset": -4}),
    ],
)
def test_files_that_do_not_fit(tmp_path, size, entries):
    path = save(tmp_path, **entries)
    (tmp_path / "w.bin").write_bytes(b"\0" * size)
    with pytest.raises(InvalidModelError):
        import_model(path)


def test_bytes_have_no_folder(tmp_path):
    path = save(tmp_path)
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    with pytest.raises(InvalidModelError, match="not given as a file"):
        import_model(path.read_bytes())


def test_files_of_weights_are_mapped_once_and_not_read(tmp_path):
    """However many tensors are in one file, and however large they are."""
    count, size = 40, 1 << 20
    names = [f"w{number}" for number in range(count)]
    nodes = [helper.make_node("Sum", ["x", *names], ["y"])]
    proto = model(nodes, [tensor("x", [size])], [tensor("y", [size])])
    for number, name in enumerate(names):
        weight = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=[size])
        external(weight, "w.bin", offset=4 * number, length=4 * size)
        proto.graph.initializer.append(weight)
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    (tmp_path / "w.bin").write_bytes(bytes(4 * (size + count)))
    loaded = read_model(tmp_path / "model.onnx").model
    arrays = [value.const_value.numpy() for value in loaded.graph.initializers.values()]
    assert len(arrays) == count and all(is_mapped(array) for array in arrays)
    starts = {array.__array_interface__["data"][0] for array in arrays}
    assert max(starts) - min(starts) == 4 * (count - 1)


def test_tensors_that_begin_between_two_elements_are_read(tmp_path):
    path = save(tmp_path, offset=3, length=48)
    (tmp_path / "w.bin").write_bytes(b"\1\2\3" + WEIGHTS.tobytes())
    check(path)
