from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.bench.inputs import model_inputs, parse_sizes, parse_suite, random_inputs
from tilewright.support.errors import DimensionError, InputError, InvalidModelError


def model(*inputs: tuple[str, int, list[int | str | None]]) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    weight = helper.make_tensor("weight", TensorProto.FLOAT, [1], [1.0])
    values.append(helper.make_tensor_value_info("weight", TensorProto.FLOAT, [1]))
    return helper.make_model(helper.make_graph([], "g", values, [], [weight]))


TEXT = model(
    ("input_ids", TensorProto.INT64, ["batch", "seq"]),
    ("attention_mask", TensorProto.INT64, ["batch", "seq"]),
    ("token_type_ids", TensorProto.INT64, ["batch", "seq"]),
    ("position_ids", TensorProto.INT64, [1, "seq"]),
    ("image", TensorProto.FLOAT, ["batch", 3, "2*seq + 1"]),
    ("flags", TensorProto.BOOL, ["batch"]),
)


def test_suite() -> None:
    expected = ({"batch": 1, "seq": 5}, {"batch": 4, "seq": 0})
    assert parse_suite("batch=1,seq=5; batch = 4 , seq=0;") == expected


@pytest.mark.parametrize("text", ["batch", "batch=", "=5", "batch=x", "batch=-1", "a=1,a=2", ""])
def test_wrong_sizes_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_sizes(text)


def test_suite_without_cases_is_refused() -> None:
    with pytest.raises(InputError, match="No shape"):
        parse_suite(" ; ")


def test_inputs_leave_initializers_out() -> None:
    assert [value.name for value in model_inputs(TEXT)] == [
        "input_ids",
        "attention_mask",
        "token_type_ids",
        "position_ids",
        "image",
        "flags",
    ]


def test_values_fit_the_names() -> None:
    values = random_inputs(model_inputs(TEXT), {"batch": 3, "seq": 50}, seed=1)
    assert values["input_ids"].shape == (3, 50) and values["input_ids"].dtype == np.int64
    assert 1 < values["input_ids"].max() < 1000 and values["input_ids"].min() >= 0
    assert (values["attention_mask"] == 1).all()
    assert set(np.unique(values["token_type_ids"])) == {0, 1}
    assert values["position_ids"].tolist() == [list(range(50))]
    assert values["image"].shape == (3, 3, 101) and values["image"].dtype == np.float32
    # The mean of 909 standard normal values is within five standard errors of 0.
    assert abs(values["image"].mean()) < 5 / np.sqrt(909)
    assert values["flags"].dtype == np.bool_


def test_seed_decides() -> None:
    specifications, sizes = model_inputs(TEXT), {"batch": 2, "seq": 9}
    first, again = (random_inputs(specifications, sizes, seed=3) for _ in range(2))
    other = random_inputs(specifications, sizes, seed=4)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["input_ids"], other["input_ids"])


def test_missing_size_names_input_axis_and_dimension() -> None:
    with pytest.raises(DimensionError, match="dimension seq has no size") as caught:
        random_inputs(model_inputs(TEXT), {"batch": 2})
    assert "input input_ids, axis 1" in str(caught.value)


def test_axis_without_a_name_is_refused() -> None:
    specifications = model_inputs(model(("x", TensorProto.FLOAT, [None])))
    with pytest.raises(DimensionError, match="no name"):
        random_inputs(specifications, {"n": 2})


def test_unreadable_model(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    with pytest.raises(InvalidModelError, match="cannot be read"):
        model_inputs(broken)
    with pytest.raises(InvalidModelError, match="cannot be read"):
        model_inputs(tmp_path / "missing.onnx")
