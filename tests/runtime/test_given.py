"""Results in arrays of the caller, and tensors of torch where tensors of torch go in."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from support.runtime_kit import add_model, buffers, kernel, model, program
from tilewright.runtime.given import as_torch
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import OpaqueStep
from tilewright.shape import symbol
from tilewright.support.errors import InputError, ResourceError

N = symbol("n")


def floats(size: int) -> np.ndarray[Any, Any]:
    return np.arange(size, dtype=np.float32)


def empty(size: int) -> np.ndarray[Any, Any]:
    return np.full(size, 99, np.float32)


def two_outputs() -> CompiledModel:
    """y = x + 1; z = x + 2, by way of the reference."""
    rows = buffers(
        ("x", "float32", [N], "input"),
        ("y", "float32", [N], "output"),
        ("z", "float32", [N], "output"),
    )
    steps = [kernel("add", [0], [1], N, [1]), OpaqueStep("Two", b"", (0,), (2,), "two")]
    return model(program(rows, steps), evaluate=lambda _, inputs: [inputs[0] + np.float32(2)])


@pytest.mark.parametrize("size", [0, 1, 1000, 100_000])
def test_a_result_goes_into_the_array_that_is_given(size: int) -> None:
    compiled, y = add_model(), empty(size)
    before = compiled.stats().process_bytes
    assert compiled(floats(size), out=y) is y
    np.testing.assert_array_equal(y, floats(size) + 1)
    assert compiled.stats().process_bytes == before
    assert compiled.run({"x": floats(size)}, out={"y": y})["y"] is y
    assert compiled(floats(size), out=(y,)) is y


def test_some_results_may_be_given_and_others_made() -> None:
    compiled, y, z = two_outputs(), empty(5), empty(5)
    for out in ((y, z), {"y": y, "z": z}, [y, None], {"z": z}, {}):
        y[:] = z[:] = 99
        results = compiled(floats(5), out=out)
        np.testing.assert_array_equal(results.y, floats(5) + 1)
        np.testing.assert_array_equal(results.z, floats(5) + 2)
        given = out if isinstance(out, dict) else dict(zip("yz", out, strict=True))
        for name in "yz":
            assert (results[name] is {"y": y, "z": z}[name]) == (given.get(name) is not None)


def test_the_memory_of_given_results_is_not_limited() -> None:
    compiled = add_model(max_bytes=64)
    with pytest.raises(ResourceError):
        compiled(floats(1000))
    compiled(floats(1000), out=empty(1000))


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (np.zeros(3, np.float64), "float64"),
        (np.zeros((3, 1), np.float32), "axes"),
        (np.zeros(4, np.float32), "shape \\[4\\], but the result has \\[3\\]"),
        (np.zeros(6, np.float32)[::2], "row-major"),
        (np.zeros(3, ">f4"), "float32 in the other byte order"),
        (np.frombuffer(bytes(12), np.float32), "read-only"),
        (np.ma.masked_array(np.zeros(3, np.float32)), "MaskedArray"),
        ([1.0, 2.0, 3.0], "3 arrays"),
        ("y.npy", "builtins.str"),
        ([], "^'out' holds 0 arrays, but the model has 1 output\n"),
        ({"q": np.zeros(3, np.float32)}, "^'out' names 'q'"),
        ((np.zeros(3, np.float32),) * 2, "2 arrays"),
    ],
)
def test_an_array_that_cannot_take_the_result_is_refused(out: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        add_model()(floats(3), out=out)


def test_a_result_that_the_reference_makes_is_checked_too() -> None:
    with pytest.raises(InputError, match="'z'"):
        two_outputs()(floats(3), out={"z": empty(4)})


def test_results_that_share_memory_are_refused() -> None:
    x, room = floats(8), empty(20)
    with pytest.raises(InputError, match="shares memory with input 'x'"):
        add_model()(x, out=x)
    with pytest.raises(InputError, match="shares memory with input 'x'"):
        add_model()(x[:6], out=x[2:])
    add_model()(x[:4], out=x[4:])
    with pytest.raises(InputError, match="that for output 'y'"):
        two_outputs()(floats(10), out=(room[:10], room[9:19]))
    two_outputs()(floats(10), out=(room[:10], room[10:]))
    np.testing.assert_array_equal(room, np.r_[floats(10) + 1, floats(10) + 2])


def test_what_has_no_elements_shares_no_memory() -> None:
    rows = buffers(
        ("past", "float32", [symbol("m")], "input"),
        ("x", "float32", [N], "input"),
        ("y", "float32", [N], "output"),
    )
    compiled = model(program(rows, [kernel("add", [1], [2], N, [1])]))
    room = empty(10)
    compiled(room[5:5], floats(10), out=room)
    np.testing.assert_array_equal(room, floats(10) + 1)
    with pytest.raises(InputError, match="shares memory with input 'past'"):
        compiled(room[5:6], floats(10), out=room)


def test_a_call_with_arrays_runs_one_function_of_python() -> None:
    """All others cost more time than what a small call computes."""
    compiled, x, y = add_model(), floats(5), empty(5)
    inputs = {"x": x}
    seen: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.append(frame.f_code.co_name)

    for name, call in (
        ("__call__", lambda: compiled(x)),
        ("__call__", lambda: compiled(x=x)),
        ("__call__", lambda: compiled(x, out=y)),
        ("__call__", lambda: compiled(x, out=(y,))),
        ("run", lambda: compiled.run(inputs)),
        ("run", lambda: compiled.run(inputs, out=y)),
    ):
        seen.clear()
        sys.setprofile(note)
        call()
        sys.setprofile(None)
        assert seen == ["<lambda>", name]
    assert inputs == {"x": x}


class Exported:
    """Something that is no array but speaks DLPack."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_results_go_to_what_speaks_dlpack_unless_it_is_read_only() -> None:
    own = Exported(empty(3))
    assert add_model()(floats(3), out=own) is own
    np.testing.assert_array_equal(own.array, floats(3) + 1)
    constant = floats(3)
    constant.flags.writeable = False
    np.testing.assert_array_equal(add_model()(Exported(constant)), floats(3) + 1)
    with pytest.raises(InputError, match="read-only"):
        add_model()(floats(3), out=Exported(constant))


@pytest.mark.peers
def test_torch_tensors_come_out_where_torch_tensors_go_in() -> None:
    torch = pytest.importorskip("torch")
    y, z = two_outputs()(torch.arange(4.0))
    assert isinstance(y, torch.Tensor) and isinstance(z, torch.Tensor)
    assert y.tolist() == [1, 2, 3, 4] and z.tolist() == [2, 3, 4, 5]
    assert isinstance(add_model().run({"x": torch.arange(4.0)})["y"], torch.Tensor)
    assert isinstance(add_model()(floats(4)), np.ndarray)
    array = empty(4)
    assert add_model()(torch.arange(4.0), out=array) is array and array.tolist() == [1, 2, 3, 4]
    y, z = two_outputs()(torch.arange(4.0), out=(array, None))
    assert y is array and isinstance(z, torch.Tensor)
    own = torch.empty(4)
    assert add_model()(floats(4), out=own) is own and own.tolist() == [1, 2, 3, 4]
    with pytest.raises(InputError, match="row-major"):
        add_model()(floats(4), out=torch.empty(8)[::2])


@pytest.mark.peers
@pytest.mark.parametrize(
    ("name", "is_tensor"),
    [("bfloat16", True), ("float8_e4m3fn", True), ("float8_e5m2fnuz", True), ("int4", False)],
)
def test_types_that_numpy_does_not_know_become_tensors_if_torch_has_them(
    name: str, is_tensor: bool
) -> None:
    torch = pytest.importorskip("torch")
    array = np.array([1.0, -2.0, 0.0]).astype(getattr(ml_dtypes, name))
    made = as_torch(torch, array)
    assert isinstance(made, torch.Tensor) == is_tensor
    if is_tensor:
        assert made.dtype is getattr(torch, name) and made.float().tolist() == [1.0, -2.0, 0.0]
