"""Weights inside of a model: they stay where they are, and a model reads as the parser reads it."""

from __future__ import annotations

import hashlib

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from support.onnx_models import model, run, tensor
from tilewright.frontend.onnx import import_model
from tilewright.frontend.onnx.initializers import LARGE, cut_out, is_plain
from tilewright.frontend.onnx.source import read_model
from tilewright.ir.mapped import is_mapped
from tilewright.support.errors import InvalidModelError

COUNT = 2 * LARGE  # elements that are large whatever their type
TYPES = (np.float32, np.float64, np.float16, np.int8, np.uint16, np.int64, ml_dtypes.bfloat16)


def summed(*weights):
    """A model that adds up its input and initializers of float32."""
    names = [f"w{number}" for number in range(len(weights))]
    return model(
        [helper.make_node("Sum", ["x", *names], ["y"])],
        [tensor("x", ["n", COUNT])],
        [tensor("y", ["n", COUNT])],
        weights=dict(zip(names, weights, strict=True)),
    )


def values(number=0):
    return (np.arange(COUNT) % 251 + number).astype(np.float32)


def contents(loaded):
    return {n: v.const_value.numpy() for n, v in loaded.model.graph.initializers.items()}


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_weights_of_a_file_are_views_of_it_wherever_they_begin(tmp_path, dtype):
    """Elements of every type, at every distance from a multiple of their size."""
    wanted = {f"w{i}{'_' * i}": (np.arange(COUNT) % 97 + i).astype(dtype) for i in range(20)}
    proto = summed()
    for name, array in wanted.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    found = contents(read_model(path))
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert is_mapped(found[name]) and found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
    steps = {a.__array_interface__["data"][0] % np.dtype(dtype).itemsize for a in found.values()}
    assert len(steps) == np.dtype(dtype).itemsize


def test_a_model_computes_with_them(tmp_path):
    weights = [values(number) for number in range(3)]
    path = tmp_path / "model.onnx"
    path.write_bytes(summed(*weights).SerializeToString())
    x = np.ones((2, COUNT), np.float32)
    for source in (path, path.read_bytes()):
        assert np.array_equal(run(import_model(source).graph, x=x)["y"], x + sum(weights))


def test_what_is_parsed_has_no_large_contents():
    proto = summed(values(), np.ones(1, np.float32), values(1))
    data = np.frombuffer(proto.SerializeToString(), np.uint8)
    skeleton, cut = cut_out(data)
    assert [place.number for place in cut] == [0, 2]
    assert len(skeleton) < LARGE
    assert data[cut[1].begin : cut[1].end].tobytes() == values(1).tobytes()
    for place in cut:
        proto.graph.initializer[place.number].ClearField("raw_data")
    parsed = onnx.ModelProto()
    parsed.ParseFromString(skeleton)
    assert parsed == proto


def test_a_file_without_large_contents_is_parsed_as_it_is():
    data = summed(np.ones(COUNT // 64, np.float32)).SerializeToString()
    assert cut_out(np.frombuffer(data, np.uint8)) == (data, [])


def test_a_model_in_two_parts_is_left_to_the_parser():
    """A graph that occurs twice is merged: fields in turn, and lists one after the other."""
    one, two = summed(values()), onnx.ModelProto()
    two.graph.initializer.append(numpy_helper.from_array(values(1), "other"))
    data = one.SerializeToString() + two.SerializeToString()
    assert cut_out(np.frombuffer(data, np.uint8)) == (data, [])
    found = contents(read_model(data))
    assert np.array_equal(found["w0"], values()) and np.array_equal(found["other"], values(1))


def test_contents_that_occur_twice_are_the_last_ones():
    proto = summed(values())
    body = proto.graph.initializer[0].SerializeToString()
    again = onnx.TensorProto(raw_data=values(5).tobytes()).SerializeToString()
    proto.graph.ClearField("initializer")
    tail = body + again
    graph = proto.graph.SerializeToString() + b"\x2a" + _number(len(tail)) + tail
    proto.ClearField("graph")
    data = proto.SerializeToString() + b"\x3a" + _number(len(graph)) + graph
    assert np.array_equal(contents(read_model(data))["w0"], values(5))


def _number(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize("size", [4 * COUNT - 4, 4 * COUNT + 4, 4 * COUNT - 1])
def test_contents_that_do_not_fit_their_sizes_are_refused(size):
    proto = summed(values())
    proto.graph.initializer[0].raw_data = bytes(size)
    with pytest.raises(InvalidModelError, match="does not fit its type and sizes"):
        import_model(proto.SerializeToString())


def test_a_tensor_without_data_is_not_zeros():
    proto = summed(values())
    proto.graph.initializer[0].ClearField("raw_data")
    with pytest.raises(InvalidModelError, match="has no data"):
        import_model(proto)


def test_what_else_a_tensor_holds_is_left_to_the_parser():
    plain = onnx.TensorProto(data_type=onnx.TensorProto.FLOAT, dims=[3])
    assert is_plain(plain, 12)
    assert not is_plain(plain, 8)
    for other in (
        onnx.TensorProto(data_type=1, dims=[3], float_data=[1, 2, 3]),
        onnx.TensorProto(data_type=1, dims=[3], data_location=onnx.TensorProto.EXTERNAL),
        onnx.TensorProto(data_type=onnx.TensorProto.STRING, dims=[3]),
        onnx.TensorProto(data_type=onnx.TensorProto.INT4, dims=[24]),
        onnx.TensorProto(data_type=99, dims=[3]),
        onnx.TensorProto(data_type=1, dims=[-1, -3]),
    ):
        assert not is_plain(other, 12)


def test_files_that_end_early_or_are_damaged_are_left_to_the_parser():
    """Whatever is cut out of a damaged file, it is what the parser finds in it."""
    data = bytearray(summed(values(), values(1)).SerializeToString())
    for end in (0, 1, 5, 40, len(data) // 2, len(data) - 1):
        part = bytes(data[:end])
        assert cut_out(np.frombuffer(part, np.uint8)) == (part, [])
    generator = np.random.default_rng(0)
    whole = np.flatnonzero([byte > 32 for byte in data[:200]])
    for _ in range(300):
        changed = bytearray(data)
        changed[int(generator.choice(whole))] = int(generator.integers(256))
        skeleton, cut = cut_out(np.frombuffer(bytes(changed), np.uint8))
        wanted, found = onnx.ModelProto(), onnx.ModelProto()
        try:
            wanted.ParseFromString(bytes(changed))
        except Exception:
            continue
        found.ParseFromString(skeleton)
        for place in cut:
            contents_here = bytes(changed[place.begin : place.end])
            found.graph.initializer[place.number].raw_data = contents_here
        assert found == wanted


@pytest.mark.parametrize("weights", [0, 2])
def test_the_digest_is_that_of_the_file(tmp_path, weights):
    data = summed(*map(values, range(weights))).SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    for source in (path, data):
        assert read_model(source).sha256() == hashlib.sha256(data).hexdigest()
        assert import_model(source).report.source_sha256 == hashlib.sha256(data).hexdigest()
