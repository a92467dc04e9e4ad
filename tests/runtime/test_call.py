"""Calling a model: arguments in, arrays out, and sentences for everything that does not fit."""

from __future__ import annotations

import gc
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from support.runtime_kit import (
    add_model,
    add_program,
    buffers,
    chain_program,
    chain_reference,
    kernel,
    model,
)
from support.runtime_kit import program as make_program
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program_json import program_from_json, program_to_json
from tilewright.shape import Scope, symbol
from tilewright.support.errors import (
    DimensionError,
    ExecutionError,
    InputError,
    ResourceError,
)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("size", [0, 1, 2, 63, 64, 65, 1000])
def test_one_kernel(size: int) -> None:
    compiled = add_model()
    x = floats(size)
    y = compiled(x)
    assert isinstance(y, np.ndarray) and y.dtype == np.float32 and y.flags.writeable
    np.testing.assert_array_equal(y, x + 1)
    np.testing.assert_array_equal(compiled(x=x), x + 1)
    np.testing.assert_array_equal(compiled.run({"x": x})["y"], x + 1)


def test_outputs_are_the_callers_own_and_aligned() -> None:
    compiled = add_model()
    first = compiled(floats(100_000))
    second = compiled(floats(100_000))
    assert not np.shares_memory(first, second)
    assert first.ctypes.data % 64 == 0
    first[:] = 0
    np.testing.assert_array_equal(second, floats(100_000) + 1)
    del compiled
    gc.collect()
    np.testing.assert_array_equal(second, floats(100_000) + 1)


@pytest.mark.parametrize(
    "arrange",
    [
        lambda x: np.repeat(x, 2)[::2],
        lambda x: x[::-1].copy()[::-1],
        lambda x: x.astype(">f4"),
        lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32),
        lambda x: np.asfortranarray(x),
    ],
)
def test_odd_layouts_just_work(arrange: Any) -> None:
    x = floats(37)
    np.testing.assert_array_equal(add_model()(arrange(x)), x + 1)


def test_transposed_matrix() -> None:
    compiled = model(chain_program(1, 0))
    x = (floats(5, 7) / 35).astype(np.float32)
    np.testing.assert_allclose(compiled(x.T), chain_reference(x.T, 1), rtol=1e-6)


def test_scalars_and_rank_zero() -> None:
    compiled = model(
        make_program(
            buffers(("x", "float32", [], "input"), ("y", "float32", [], "output")),
            [kernel("add", [0], [1], 1, [5])],
        )
    )
    assert compiled(np.float32(2)) == np.float32(7)
    assert compiled(np.array(2, ">f4")).shape == ()
    with pytest.raises(InputError, match="float64"):
        compiled(2.0)


class Exported:
    """Something that is no array but speaks DLPack."""

    def __init__(self, array: np.ndarray[Any, Any], device: int = 1) -> None:
        self.array, self.device = array, device

    def __dlpack__(self) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


def test_dlpack() -> None:
    compiled = add_model()
    x = floats(50)
    np.testing.assert_array_equal(compiled(Exported(x)), x + 1)
    np.testing.assert_array_equal(compiled(Exported(x[::2])), x[::2] + 1)
    np.testing.assert_array_equal(compiled(Exported(x[:0])), x[:0])
    with pytest.raises(InputError, match="another device"):
        compiled(Exported(x, device=2))
    with pytest.raises(InputError, match="float64"):
        compiled(Exported(x.astype(np.float64)))


@pytest.mark.peers
def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    compiled = add_model()
    np.testing.assert_array_equal(compiled(torch.arange(9.0)), floats(9) + 1)
    np.testing.assert_array_equal(compiled(torch.arange(18.0)[::2]), floats(18)[::2] + 1)
    with pytest.raises(InputError, match="detach"):
        compiled(torch.ones(3, requires_grad=True))


@pytest.mark.peers
def test_torch_bfloat16() -> None:
    torch = pytest.importorskip("torch")
    n = symbol("n")
    compiled = model(
        make_program(
            buffers(("x", "bfloat16", [n], "input"), ("y", "bfloat16", [n], "output")),
            # Two bfloat16 elements at a time as raw bits: adding 0.0 to a float keeps them.
            [kernel("add", [0], [1], n // 2, [0])],
        )
    )
    y = compiled(torch.arange(6.0).to(torch.bfloat16))
    assert y.dtype == torch.bfloat16 and y.tolist() == list(range(6))
    z = compiled(np.arange(6.0).astype(ml_dtypes.bfloat16))
    assert z.dtype == ml_dtypes.bfloat16 and z.tolist() == list(range(6))


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, ["'x' is missing", "x: float32[n]"]),
        ((floats(2), floats(2)), {}, ["takes 1 input, not 2"]),
        ((), {"z": floats(2)}, ["no input 'z'", "x: float32[n]"]),
        ((floats(2),), {"x": floats(2)}, ["given twice"]),
        ((floats(2, 2),), {}, ["2 axes [2, 2]", "should have 1"]),
        ((floats(2).astype(np.int32),), {}, ["int32", "float32 is expected"]),
        ((["a"],), {}, ["float32 is expected"]),
        (([[1.0], [1.0, 2.0]],), {}, ["cannot be read as an array"]),
    ],
)
def test_wrong_arguments(args: Any, kwargs: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        add_model()(*args, **kwargs)
    for word in words:
        assert word in str(caught.value)


def two_inputs() -> CompiledModel:
    scope = Scope()
    n = scope.declare("n", 1, 8, multiple_of=2)
    return model(
        make_program(
            buffers(
                ("a", "float32", [n, 3], "input"),
                ("b", "float32", [n], "input"),
                ("c", "float32", [n, 3], "output"),
                ("d", "float32", [n], "output"),
            ),
            [kernel("add", [0], [2], n * 3, [1]), kernel("add", [1], [3], n, [n])],
            scope,
        )
    )


def test_wrong_sizes() -> None:
    compiled = two_inputs()
    good = compiled(floats(2, 3), floats(2))
    for _ in range(2):  # the second time with plans of other shapes in the table
        for a, b, words in [
            (floats(2, 4), floats(2), ["axis 1", "4", "3"]),
            (floats(2, 3), floats(4), ["axis 0", "4", '"n" = 2']),
            (floats(10, 3), floats(10), ["10", "2..8"]),
            (floats(0, 3), floats(0), ["0", "2..8"]),
            (floats(3, 3), floats(3), ["3", "multiple of 2"]),
        ]:
            with pytest.raises(DimensionError) as caught:
                compiled(a, b)
            for word in words:
                assert word in str(caught.value), str(caught.value)
    np.testing.assert_array_equal(compiled(floats(2, 3), floats(2)).c, good.c)


def test_several_outputs() -> None:
    outputs = two_inputs()(floats(2, 3), b=floats(2))
    c, d = outputs
    np.testing.assert_array_equal(c, floats(2, 3) + 1)
    np.testing.assert_array_equal(d, floats(2) + 2)
    assert outputs[0] is c and outputs["d"] is d and outputs.d is d and len(outputs) == 2
    assert dict(outputs.items()).keys() == {"c", "d"} and {**outputs}.keys() == {"c", "d"}
    with pytest.raises(KeyError, match="c, d"):
        outputs["e"]
    sent = pickle.loads(pickle.dumps(outputs))
    assert sent.names == ("c", "d") and np.array_equal(sent.d, d)


def test_derived_dimension() -> None:
    n = symbol("n")
    compiled = model(
        make_program(
            buffers(("x", "float32", [2 * n + 1], "input"), ("y", "float32", [n], "output")),
            [kernel("add", [0], [1], n, [0])],
        )
    )
    np.testing.assert_array_equal(compiled(floats(7)), floats(3))
    np.testing.assert_array_equal(compiled(floats(1)), floats(0))
    with pytest.raises(DimensionError, match="2\\*n \\+ 1"):
        compiled(floats(6))


def test_status_becomes_an_error() -> None:
    m, n = symbol("m"), symbol("n")
    check = "Index {0} is outside a table of {1} rows."
    compiled = model(
        make_program(
            buffers(
                ("table", "float32", [m], "input"),
                ("index", "int64", [n], "input"),
                ("y", "float32", [n], "output"),
            ),
            [kernel("gather", [0, 1], [2], n, [m], work=1_000_000, checks=[check])],
        )
    )
    index = np.zeros(1000, np.int64)
    index[777] = 12
    with pytest.raises(ExecutionError, match="Index 12 is outside a table of 4 rows"):
        compiled(floats(4), index)
    index[777] = 3
    y = compiled(floats(4), index)
    assert y[777] == 3 and y[776] == 0


def test_limit_on_memory() -> None:
    compiled = model(chain_program(4, 0), num_threads=1)
    need = compiled.memory(b=64, n=64)
    assert need.outputs == 64 * 64 * 4 and need.scratch == 256 and not need.partial
    assert need.arena == 2 * 64 * 64 * 4  # two intermediates at a time
    compiled.max_bytes = need.arena + need.outputs + need.scratch
    compiled(np.zeros((64, 64), np.float32))
    compiled.max_bytes -= 1
    with pytest.raises(ResourceError) as caught:
        compiled(np.zeros((64, 64), np.float32))
    assert str(compiled.max_bytes) in str(caught.value)
    assert str(compiled.max_bytes + 1) in str(caught.value)
    compiled.max_bytes = None
    compiled(np.zeros((64, 64), np.float32))


def test_too_large_for_any_machine() -> None:
    n = symbol("n")
    huge = n * (1 << 40)
    compiled = model(
        make_program(
            buffers(
                ("x", "float32", [n], "input"),
                ("t", "float32", [huge], "intermediate"),
                ("y", "float32", [n], "output"),
            ),
            [kernel("add", [0], [1], 0, [0]), kernel("add", [0], [2], n, [0])],
        )
    )
    with pytest.raises(ResourceError, match="bytes"):
        compiled(floats(1 << 20))
    with pytest.raises(ResourceError):
        compiled(floats(1 << 22))
    np.testing.assert_array_equal(compiled(floats(0)), floats(0))


def test_statistics_and_shrinking() -> None:
    compiled = model(chain_program(4, 0))
    for n in (3, 4, 3, 4, 4):
        compiled(np.zeros((2, n), np.float32))
    stats = compiled.stats()
    assert (stats.calls, stats.plans_made, stats.plan_hits) == (5, 2, 3)
    assert stats.process_bytes >= stats.process_idle_bytes > 0
    assert stats.process_peak_bytes >= stats.process_bytes
    compiled.shrink()
    assert compiled.stats().process_idle_bytes == 0
    result = compiled(np.zeros((2, 3), np.float32))
    np.testing.assert_allclose(result, chain_reference(np.zeros((2, 3), np.float32), 4), rtol=1e-5)


def test_many_shapes_stay_bounded() -> None:
    compiled = add_model()
    for size in range(1000):
        assert compiled(floats(size)).shape == (size,)
    assert compiled.stats().plans_kept <= 512
    np.testing.assert_array_equal(compiled(floats(3)), floats(3) + 1)


def test_explain_and_profile() -> None:
    compiled = model(chain_program(3, 1_000_000), num_threads=4)
    kernels = compiled.explain(b=10, n=100)
    assert [k.function for k in kernels] == ["add", "add", "add", "exponential", "scan"]
    assert kernels[0].grid == 1000 and kernels[0].threads == 4 and kernels[2].threads == 1
    assert kernels[4].parameters == (100,) and kernels[4].bytes == 2 * 4000
    with pytest.raises(DimensionError, match="'n' is missing"):
        compiled.explain(b=1)
    with pytest.raises(DimensionError, match="called 'q'"):
        compiled.explain(b=1, n=1, q=2)
    with pytest.raises(DimensionError, match="4096"):
        compiled.explain(b=5000, n=1)
    times = compiled.profile(np.zeros((10, 100), np.float32))
    assert [t.kind for t in times] == ["kernel"] * 5 and all(t.nanoseconds > 0 for t in times)


def test_description_of_a_model() -> None:
    compiled = two_inputs()
    assert [str(spec) for spec in compiled.inputs] == ["a: float32[n, 3]", "b: float32[n]"]
    assert [spec.name for spec in compiled.outputs] == ["c", "d"]
    assert "a: float32[n, 3]" in repr(compiled)


def test_program_round_trip() -> None:
    for what in (add_program(), chain_program(3, 9)):
        again = program_from_json(program_to_json(what))
        assert again == what and program_to_json(again) == program_to_json(what)
