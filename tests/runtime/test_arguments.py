"""Arguments that change, mislead or have the wrong type: a result or a sentence, never a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.runtime_kit import (
    add_model,
    add_program,
    buffers,
    chain_program,
    kernel,
    model,
    program,
)
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import BindStep
from tilewright.shape import Scope, symbol
from tilewright.support.errors import DimensionError, InputError

N, K = symbol("n"), symbol("k")


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def two_inputs() -> CompiledModel:
    scope = Scope()
    n, m = scope.declare("n", 0, 100), scope.declare("m", 0, 100)
    return model(
        program(
            buffers(
                ("a", "float32", [n, m], "input"),
                ("b", "float32", [n], "input"),
                ("c", "float32", [n, m], "output"),
            ),
            [kernel("add", [0], [2], n * m, [1])],
            scope,
        )
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_array_that_gets_other_sizes_while_a_later_input_is_converted() -> None:
    a = floats(2, 3)

    class Reshaping:
        def __array__(self, *_: object, **__: object) -> np.ndarray[Any, Any]:
            a.shape = (3, 2)
            # Takes the memory that held the old sizes.
            self.kept = [np.empty((7, 7)) for _ in range(100)]
            return floats(2)

    result = two_inputs()(a, Reshaping())
    np.testing.assert_array_equal(result, floats(2, 3) + 1)


@pytest.mark.parametrize(
    ("dtype", "size"), [("uint8", 200), ("uint16", 40_000), ("uint32", 5), ("uint64", 7)]
)
def test_unsigned_sizes_are_not_negative(dtype: str, size: int) -> None:
    rows = buffers(
        ("x", "float32", [N], "input"), ("s", dtype, [1], "input"), ("y", "float32", [K], "output")
    )
    compiled = model(program(rows, [BindStep(1, ("k",)), kernel("add", [0], [2], K, [1])]))
    x = floats(40_000)
    np.testing.assert_array_equal(compiled(x, np.array([size], dtype)), x[:size] + 1)


def test_an_unsigned_size_beyond_all_sizes_is_refused() -> None:
    rows = buffers(("s", "uint64", [1], "input"), ("y", "float32", [K], "output"))
    compiled = model(program(rows, [BindStep(0, ("k",)), kernel("add", [0], [1], 0, [1])]))
    with pytest.raises(DimensionError, match="18446744073709551615"):
        compiled(np.array([2**64 - 1], np.uint64))


def test_a_masked_array_is_refused_where_elements_are_masked() -> None:
    x = np.ma.masked_array(floats(3), mask=[False, True, False])
    with pytest.raises(InputError, match="masked") as caught:
        add_model()(x)
    assert caught.value.hint is not None and "filled" in caught.value.hint
    whole = np.ma.masked_array(floats(3), mask=[False] * 3)
    np.testing.assert_array_equal(add_model()(whole), floats(3) + 1)


def test_an_empty_list_has_elements_of_any_type() -> None:
    assert add_model()([]).shape == (0,)


def test_subclasses_of_arrays_are_taken_as_arrays(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(5,))
    mapped[:] = floats(5)
    result = add_model()(mapped)
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, floats(5) + 1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"x": floats(2)}, "model.run(inputs)"),
        ("x.npy", "numpy.load"),
        (Path("x.npy"), "numpy.load"),
        (b"x", "numpy.frombuffer"),
    ],
)
def test_what_is_no_array_is_called_by_its_name(given: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        add_model()(given)
    assert words in str(caught.value) and "elements of" not in str(caught.value)


def test_a_dictionary_in_the_place_of_several_inputs_says_how_to_run_it() -> None:
    with pytest.raises(InputError, match=r"'b' is missing\n.*model\.run\(inputs\)"):
        two_inputs()({"a": floats(2, 3), "b": floats(2)})


def test_a_file_of_arrays_given_as_an_input_says_how_to_run_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", x=floats(2))
    archive = np.load(tmp_path / "inputs.npz")
    with pytest.raises(InputError, match=r"model\.run\(inputs\)"):
        add_model()(archive)
    np.testing.assert_array_equal(add_model().run(archive)["y"], floats(2) + 1)


@pytest.mark.parametrize("given", [[floats(2)], floats(2), "x.npz", None])
def test_run_takes_a_dictionary_only(given: Any) -> None:
    with pytest.raises(InputError, match="dictionary"):
        add_model().run(given)


class Foreign:
    """A tensor of another library that gives nothing away."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __dlpack_device__(self) -> tuple[int, int]:
        raise self.error("meta")

    def __dlpack__(self, **_: object) -> Any:
        raise self.error("meta")


@pytest.mark.parametrize("error", [ValueError, RuntimeError, TypeError])
def test_a_tensor_without_memory_is_refused(error: type[Exception]) -> None:
    with pytest.raises(InputError, match="meta"):
        add_model()(Foreign(error))


@pytest.mark.peers
def test_a_tensor_of_torch_that_is_noted_as_negative() -> None:
    torch = pytest.importorskip("torch")
    negative = torch._neg_view(torch.arange(3.0))
    assert add_model()(negative).tolist() == add_model()(-torch.arange(3.0)).tolist()
    with pytest.raises(InputError, match="negative of its memory"):
        add_model()(torch.arange(3.0), out=negative)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore:Accessing the data pointer")
def test_a_tensor_of_torch_without_memory_is_refused() -> None:
    torch = pytest.importorskip("torch")
    with torch._subclasses.FakeTensorMode(), pytest.raises(InputError, match="has no memory"):
        add_model()(torch.empty(3))


@pytest.mark.peers
def test_a_meta_tensor_of_torch_is_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match="input 'x'"):
        add_model()(torch.empty(3, device="meta"))


@pytest.mark.parametrize("wrong", ["2", 2.0, True, 0, -1, 1 << 70, [2]])
@pytest.mark.parametrize("name", ["num_threads", "max_bytes"])
def test_a_limit_that_is_no_whole_number_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(InputError, match=name):
        add_model(**{name: wrong})
    compiled = add_model()
    with pytest.raises(InputError, match=name):
        setattr(compiled, name, wrong)


def test_limits_may_be_numpy_integers() -> None:
    compiled = add_model(num_threads=np.int64(2), max_bytes=np.uint8(64))
    assert (compiled.num_threads, compiled.max_bytes) == (2, 64)


def test_a_misspelt_setting_is_an_error() -> None:
    with pytest.raises(AttributeError, match="num_thread"):
        add_model().num_thread = 3  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("wrong", [2.5, "3", None, -1, True, 1 << 70])
def test_a_size_that_is_no_whole_number_is_refused(wrong: Any) -> None:
    compiled = model(chain_program(1, 0))
    for ask in (compiled.memory, compiled.explain):
        with pytest.raises(DimensionError, match="'b'"):
            ask(b=wrong, n=1)
    assert compiled.memory(b=np.int64(2), n=1) == compiled.memory(b=2, n=1)


@pytest.mark.parametrize("wrong", [None, 3, b"model.tw"])
def test_a_model_is_not_saved_where_no_file_is_named(wrong: Any) -> None:
    with pytest.raises(InputError, match="names no file"):
        add_model().save(wrong)


def test_a_profile_lists_only_what_ran() -> None:
    compiled = model(chain_program(3, 0))
    assert len(compiled.profile(np.zeros((2, 3), np.float32))) == 5
    assert compiled.profile(np.zeros((0, 3), np.float32)) == []


def test_an_input_may_be_called_as_an_argument_of_calls() -> None:
    rows = buffers(("out", "float32", [N], "input"), ("self", "float32", [N], "output"))
    compiled = model(program(rows, [kernel("add", [0], [1], N, [1])]))
    y = np.empty(3, np.float32)
    np.testing.assert_array_equal(compiled(out=floats(3)), floats(3) + 1)
    assert compiled.run({"out": floats(3)}, out=y)["self"] is y
    np.testing.assert_array_equal(y, floats(3) + 1)


def test_programs_do_not_share_settings() -> None:
    one, other = model(add_program()), model(add_program(), flush_denormals=True)
    assert (one.flush_denormals, other.flush_denormals) == (False, True)
    with pytest.raises(InputError, match="flush_denormals"):
        one.flush_denormals = "yes"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("shape", [(1 << 30, 100), (100, 1 << 40)])
def test_a_view_that_repeats_itself_is_not_copied_before_its_sizes_are_asked(
    shape: tuple[int, int],
) -> None:
    view = np.broadcast_to(np.float32(1), shape)
    with pytest.raises(DimensionError, match="outside the declared range"):
        two_inputs()(view, floats(100))


def test_a_view_that_repeats_itself_is_copied_where_its_sizes_fit() -> None:
    view = np.broadcast_to(np.arange(3, dtype=np.float32), (2, 3))
    result = np.empty((2, 3), np.float32)
    assert two_inputs()(view, floats(2), out=result) is result
    np.testing.assert_array_equal(result, view + 1)
