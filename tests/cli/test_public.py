"""The public names: what they take, what they refuse and how, and what importing them costs."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilewright as tw
from support.small_models import encoder
from support.text_models import model as text_model
from tilewright.backend.cpu.machine import LEVELS
from tilewright.compile_machines import PORTABLE
from tilewright.options import (
    DEFAULTS,
    AccuracyName,
    CompileOptions,
    FallbackName,
    LevelName,
    PrecisionName,
)
from tilewright.rewrite.precision import Precision
from tilewright.tile.variants import Accuracy


def range_of(extent: Any) -> tuple[int, int | None, int]:
    """The range that a model has whose dimension "batch" is declared so."""
    short = text_model("g (float[batch] x) => (float[batch] y) { y = Relu(x) }")
    model = tw.compile(short, dims={"batch": extent}, levels="x86-64")
    (found,) = (d for d in model.dimensions if d.name == "batch")
    return found.low, found.high, found.multiple_of


def test_ranges_as_tuples_and_sizes(folder: Path) -> None:
    ranges = {"batch": 3, "seq": (0, 64, 8)}
    model = tw.compile(folder / "model.onnx", dims=ranges)
    found = {d.name: (d.low, d.high, d.multiple_of) for d in model.dimensions}
    assert found == {"batch": (3, 3, 1), "seq": (0, 64, 8)}
    ids = np.ones((3, 8), np.int64)
    assert model(ids, ids).shape == (3, 16)
    with pytest.raises(tw.errors.DimensionError):
        model(ids[:, :7], ids[:, :7])


@pytest.mark.slow
def test_one_size_means_the_same_as_a_number_and_as_a_dim() -> None:
    assert tw.Dim(5) == tw.Dim(5, 5)
    assert range_of(5) == range_of(tw.Dim(5)) == range_of(np.int64(5)) == (5, 5, 1)


@pytest.mark.parametrize(
    ("extent", "expected"),
    [
        ((np.int32(1), np.uint8(64)), (1, 64, 1)),
        ([1, 64], (1, 64, 1)),
        (range(1, 65), (1, 64, 1)),
        (range(0, 512, 8), (0, 504, 8)),
        (range(7, 8), (7, 7, 1)),
        ((1, None), (1, 65536, 1)),
        ((None, 9), (0, 9, 1)),
        ((0, None, 4), (0, 65536, 4)),
        (tw.Dim(), (0, 65536, 1)),
        (tw.Dim(2, None), (2, 65536, 1)),
        (tw.Dim(high=9), (0, 9, 1)),
        (tw.Dim(multiple_of=np.int64(8)), (0, 65536, 8)),
    ],
    ids=str,
)
def test_ranges_may_be_written_in_many_ways(extent: Any, expected: tuple[int, int, int]) -> None:
    assert range_of(extent) == expected


def test_an_open_end_lies_where_the_model_ends() -> None:
    """A table of ten positions leaves no room for an eleventh."""
    helper = onnx.helper
    nodes = [
        helper.make_node("Shape", ["x"], ["size"]),
        helper.make_node("Slice", ["table", "zero", "size"], ["rows"]),
        helper.make_node("Add", ["x", "rows"], ["y"]),
    ]
    weights = {"table": np.arange(10, dtype=np.float32), "zero": np.zeros(1, np.int64)}
    graph = helper.make_graph(
        nodes,
        "positions",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n"])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    for extent, expected in (((2, None), (2, 10)), (tw.Dim(), (0, 10)), ((2, 5), (2, 5))):
        (found,) = tw.compile(model, dims={"n": extent}, levels="x86-64").dimensions
        assert (found.low, found.high) == expected


@pytest.mark.parametrize(
    "extent",
    [
        "1..4",
        None,
        True,
        1.5,
        (1,),
        (1, 2, 3, 4),
        (1.0, 2),
        (True, 2),
        (1, 2**70),
        (-1, 4),
        (5, 4),
        (0, 8, 0),
        (100000, None),
        range(0),
        range(8, 0, -1),
        range(4, 40, 8),
        {1, 2},
        np.ones(2),
        object,
    ],
    ids=str,
)
def test_what_is_no_range(extent: Any) -> None:
    with pytest.raises(tw.errors.DimensionError) as caught:
        tw.compile(encoder(), dims={"batch": extent})
    assert caught.value.where == 'dimension "batch"' and caught.value.hint


@pytest.mark.parametrize("ends", [(1.5, 3), (True, 3), (0, 3, True), ("1", 3), (1, ..., 8)])
def test_dim_takes_whole_numbers_only(ends: Any) -> None:
    with pytest.raises(tw.errors.DimensionError):
        tw.Dim(*ends)


def test_dim_can_be_copied_with_changes() -> None:
    assert dataclasses.replace(tw.Dim(1, 8), high=9) == tw.Dim(1, 9)


def test_one_level_may_be_named_without_a_list() -> None:
    assert tw.compile(encoder(), levels="x86-64").level == "x86-64"


def test_the_target_is_an_option_of_compile() -> None:
    assert tw.compile(encoder(), levels="avx2", target="zen3").level in ("avx2", "x86-64")
    with pytest.raises(tw.TilewrightError, match="no target"):
        tw.compile(encoder(), target="zen99")


def test_an_unknown_option_is_told_its_neighbour() -> None:
    with pytest.raises(tw.errors.InputError, match='Did you mean "dims"'):
        tw.compile(encoder(), dim={"batch": 3})  # type: ignore[call-arg]


def test_help_shows_every_option_and_its_default() -> None:
    parameters = inspect.signature(tw.compile).parameters
    assert list(DEFAULTS) == list(CompileOptions.__annotations__)
    assert list(parameters) == ["source", "num_threads", "max_bytes", "flush_denormals", *DEFAULTS]
    assert {name: parameters[name].default for name in DEFAULTS} == DEFAULTS
    undescribed = [name for name in parameters if f"``{name}" not in str(tw.compile.__doc__)]
    assert undescribed == []


def test_the_names_of_options_are_those_that_the_compiler_knows() -> None:
    assert get_args(LevelName) == (PORTABLE, *LEVELS)
    assert get_args(AccuracyName) == tuple(option.value for option in Accuracy)
    assert get_args(PrecisionName) == tuple(option.value for option in Precision)
    assert get_args(FallbackName) == ("reference", "error")


# ---------------------------------------------------------------- wrong types, everywhere


class Hostile:
    """An object that fails in any way it is asked."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __index__(self) -> int:
        raise RuntimeError("no")

    def __array__(self, *_: object, **__: object) -> np.ndarray[Any, Any]:
        raise RuntimeError("no")


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["batch", "seq", "input_ids"]), st.floats(), max_size=2),
    st.sampled_from(
        [object, len, object(), np.float32(1), np.ones(3), np.array("x"), range(3), Path("x")]
    ),
    st.builds(Hostile),
    st.builds(lambda value: {"batch": value}, st.builds(Hostile)),
    st.builds(lambda value: {"input_ids": value}, st.builds(Hostile)),
)
MODEL = encoder()
PROPERTY = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def ours_or_fine(function: Any, *arguments: Any, **keywords: Any) -> None:
    """Call; any error has to be one of ours, with a sentence."""
    try:
        function(*arguments, **keywords)
    except tw.TilewrightError as error:
        assert error.message and not error.message.endswith(".")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*DEFAULTS, "num_threads", "max_bytes"])
@PROPERTY
@given(value=ODD)
def test_wrong_types_of_options_are_errors_of_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: Any
) -> None:
    """Compiling ends where the options are read and the model is imported."""
    import tilewright.compile  # noqa: F401

    module = sys.modules["tilewright.compile"]

    class Read(Exception):
        pass

    def stop(*_: object, **__: object) -> None:
        raise Read

    monkeypatch.setattr(module, "simplified_graph", stop)
    monkeypatch.chdir(tmp_path)  # a folder to write stages into may be made
    with contextlib.suppress(Read):
        ours_or_fine(tw.compile, MODEL, **{name: value})


@PROPERTY
@given(value=ODD)
def test_wrong_sources_are_errors_of_ours(value: Any) -> None:
    ours_or_fine(tw.compile, value)


@pytest.mark.parametrize("name", [n for n in inspect.signature(tw.load).parameters if n != "path"])
@PROPERTY
@given(value=ODD)
def test_wrong_types_in_load_are_errors_of_ours(folder: Path, name: str, value: Any) -> None:
    ours_or_fine(tw.load, folder / "model.tw", **{name: value})


@PROPERTY
@given(value=ODD)
def test_wrong_paths_in_load_are_errors_of_ours(value: Any) -> None:
    ours_or_fine(tw.load, value)


@PROPERTY
@given(arguments=st.lists(ODD, min_size=1, max_size=3))
def test_wrong_types_in_dim_are_errors_of_ours(arguments: list[Any]) -> None:
    ours_or_fine(tw.Dim, *arguments)


def test_a_module_of_torch_is_told_to_be_exported() -> None:
    module = type("Linear", (), {"__module__": "torch.nn.modules.linear"})()
    with pytest.raises(tw.errors.InvalidModelError, match="from_torch"):
        tw.compile(module)


# ---------------------------------------------------------------- the package


def test_compile_stays_the_function() -> None:
    import tilewright.compile  # noqa: F401

    assert callable(tw.compile)


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = tw.missing  # type: ignore[attr-defined]


def test_dir_lists_the_public_names_only() -> None:
    assert sorted(dir(tw)) == sorted(tw.__all__)
    assert all(hasattr(tw, name) for name in tw.__all__)


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(str(tw.__file__)).parent / "py.typed").is_file()


def test_nothing_is_logged_unless_somebody_listens() -> None:
    handlers = logging.getLogger("tilewright").handlers
    assert any(isinstance(handler, logging.NullHandler) for handler in handlers)


def test_compiling_is_recorded(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tilewright"):
        tw.compile(encoder(), levels="x86-64")
    text = caplog.text
    assert "kernels" in text and "x86-64" in text


def test_python_m_tilewright_is_the_command_line() -> None:
    command = [sys.executable, "-m", "tilewright", "--help"]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "compile" in result.stdout


def test_an_artifact_runs_without_the_compiler(folder: Path) -> None:
    code = (
        "import sys, numpy as np, tilewright as tw\n"
        f"model = tw.load({str(folder / 'model.tw')!r})\n"
        "ids = np.ones((2, 3), np.int64)\n"
        "assert model(ids, ids).shape == (2, 16)\n"
        "print(sorted({'llvmlite', 'onnx', 'rich', 'tilewright.compile'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert result.stdout.strip() == "[]"


def test_an_artifact_says_at_loading_that_onnx_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "g (float[n] x) => (float[n] y, string[n] z) { y = Neg(x) z = Cast<to = 8>(x) }"
    file = tmp_path / "model.tw"
    tw.compile(text_model(text)).save(file)
    monkeypatch.setitem(sys.modules, "onnx", None)
    message = "Cast run on the ONNX reference evaluator"
    with pytest.raises(tw.errors.ArtifactError, match=message) as error:
        tw.load(file)
    assert "pip install onnx" in str(error.value.hint)
