"""Phases: opaque operators, dimensions read from values, sizes learned half way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.runtime_kit import buffers, kernel, model, program
from tilewright.runtime.program import BindStep, OpaqueStep
from tilewright.shape import Guard, Scope, less_equal, symbol
from tilewright.support.errors import ArtifactError, DimensionError, ExecutionError

N, K, M = symbol("n"), symbol("k"), symbol("m")


def floats(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def opaque(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> OpaqueStep:
    return OpaqueStep(name, name.encode(), inputs, outputs, f"{name} node")


def evaluate(payload: bytes, inputs: list[Any]) -> list[Any]:
    """A tiny reference, by the name of the operator."""
    x = inputs[0]
    match payload:
        case b"Positive":
            return [x[x > 0]]
        case b"Identity":
            return [x]
        case b"Split":
            return [[x[: len(x) // 2], x[len(x) // 2 :]]]
        case b"Concat":
            return [np.concatenate(x)]
        case b"Upper":
            return [np.char.upper(x.astype(str)).astype(object)]
        case b"Broken":
            raise RuntimeError("no such thing")
        case b"Refused":
            raise ExecutionError("the reference failed: no such place", where="Refused")
        case b"Double":
            return [x.astype(np.float64)]
        case b"Write":
            x[:] = 0
            return [x]
        case b"AddConstant":
            return [x + inputs[1]]
        case _:
            return []


def filtered() -> Any:
    """z[k] = positive(x[n] + 1) + n; w[2*k] = what is there: k learned half way, three phases."""
    rows = buffers(
        ("x", "float32", [N], "input"),
        ("before", "float32", [N], "intermediate"),
        ("keep", "float32", [N], "intermediate"),
        ("positive", "float32", [K], "intermediate"),
        ("after", "float32", [K], "intermediate"),
        ("again", "float32", [M], "intermediate"),
        ("z", "float32", [K], "output"),
        ("w", "float32", [M], "output"),
        ("u", "float32", [N], "output"),
    )
    steps = [
        kernel("add", [0], [1], N, [1], work=50_000),
        kernel("add", [1], [2], N, [10]),
        opaque("Positive", (1,), (3,)),
        kernel("add", [3], [4], K, [N]),
        opaque("Positive", (4,), (5,)),
        kernel("add", [4], [6], K, [0]),
        kernel("add", [5], [7], M, [M]),
        # Written in the first phase, still needed in the last.
        kernel("add", [2], [8], N, [0]),
    ]
    return model(program(rows, steps), evaluate=evaluate)


@pytest.mark.parametrize(
    "x", [floats(), floats(-5), floats(1, -7, 3), floats(*np.linspace(-9, 9, 999))]
)
def test_sizes_learned_half_way(x: np.ndarray[Any, Any]) -> None:
    compiled = filtered()
    for _ in range(3):
        z, w, u = compiled(x)
        positive = (x + 1)[x + 1 > 0]
        np.testing.assert_array_equal(z, positive + len(x))
        again = (positive + len(x))[positive + len(x) > 0]
        np.testing.assert_array_equal(w, again + len(again))
        np.testing.assert_array_equal(u, (x + 1) + 10)
    assert compiled.stats().plans_made == 3
    assert compiled.memory(n=5).partial and not compiled.memory(n=5, k=2, m=2).partial
    assert [k.step for k in compiled.explain(n=5)] == [0, 1]


def test_dimension_from_an_input_value() -> None:
    rows = buffers(
        ("x", "float32", [N], "input"),
        ("size", "int32", [1], "input"),
        ("y", "float32", [K], "output"),
    )
    guard = Guard(less_equal(K, N), "The size {k} is more than the {n} elements of x.")
    steps = [BindStep(1, ("k",), (guard,)), kernel("add", [0], [2], K, [1])]
    compiled = model(program(rows, steps))
    x = floats(1, 2, 3, 4)
    for size in (3, 0, 4):
        np.testing.assert_array_equal(compiled(x, np.array([size], np.int32)), x[:size] + 1)
    with pytest.raises(DimensionError, match="The size 5 is more than the 4 elements"):
        compiled(x, np.array([5], np.int32))
    with pytest.raises(DimensionError, match="-1"):
        compiled(x, np.array([-1], np.int32))


def test_count_of_values_must_fit() -> None:
    rows = buffers(("s", "int64", [N], "input"), ("y", "float32", [], "output"))
    steps = [BindStep(0, ("k", "m")), opaque("Sum", (0,), (1,))]
    compiled = model(program(rows, steps), evaluate=lambda _, inputs: [np.float32(sum(inputs[0]))])
    assert compiled(np.array([2, 5])) == 7
    with pytest.raises(DimensionError, match="3 elements"):
        compiled(np.array([2, 5, 1]))


def single(name: str, dtype: str = "float32", out: str | None = None) -> Any:
    rows = buffers(("x", dtype, [N], "input"), ("y", out or dtype, [K], "output"))
    return model(program(rows, [opaque(name, (0,), (1,))]), evaluate=evaluate)


def test_outputs_never_alias_inputs() -> None:
    x = floats(1, 2)
    y = single("Identity")(x)
    y[:] = 9
    np.testing.assert_array_equal(x, floats(1, 2))


def test_a_reference_cannot_change_its_inputs() -> None:
    x = floats(1, 2)
    with pytest.raises(ExecutionError, match="read-only"):
        single("Write")(x)
    np.testing.assert_array_equal(x, floats(1, 2))


def test_failing_references() -> None:
    x = floats(1, 2)
    with pytest.raises(ExecutionError, match="RuntimeError: no such thing") as caught:
        single("Broken")(x)
    assert "Broken node" in str(caught.value)
    with pytest.raises(ExecutionError, match="no such place") as caught:
        single("Refused")(x)
    assert caught.value.where == "Refused node"
    with pytest.raises(ExecutionError, match="float64"):
        single("Double")(x)
    with pytest.raises(ExecutionError, match="0 values, but 1"):
        single("Unknown")(x)
    np.testing.assert_array_equal(single("Identity")(x), x)


def test_a_reference_of_wrong_size() -> None:
    rows = buffers(("x", "float32", [N], "input"), ("y", "float32", [N], "output"))
    compiled = model(program(rows, [opaque("Positive", (0,), (1,))]), evaluate=evaluate)
    np.testing.assert_array_equal(compiled(floats(1, 2)), floats(1, 2))
    with pytest.raises(ExecutionError, match="axis 0 must be 2"):
        compiled(floats(1, -2))


def test_strings() -> None:
    compiled = single("Upper", "string")
    assert compiled(np.array(["ab", "c"], object)).tolist() == ["AB", "C"]
    assert compiled(["x"]).tolist() == ["X"]


def test_sequences_keep_their_elements() -> None:
    rows = buffers(
        ("x", "float32", [N], "input"),
        ("t", "float32", [N], "intermediate"),
        ("halves", "object", [], "intermediate"),
        ("other", "float32", [N], "intermediate"),
        ("joined", "float32", [K], "intermediate"),
        ("y", "float32", [K], "output"),
        ("s", "object", [], "output"),
    )
    steps = [
        kernel("add", [0], [1], N, [1]),
        opaque("Split", (1,), (2,)),
        opaque("Split", (1,), (6,)),
        # Takes the place of t in the arena, while the sequence is still needed.
        kernel("add", [0], [3], N, [77]),
        opaque("Concat", (2,), (4,)),
        kernel("add", [4], [5], K, [1]),
        kernel("add", [3], [3], 0, [1]),
    ]
    compiled = model(program(rows, steps), evaluate=evaluate)
    for size in (4, 5, 0):
        x = np.arange(size, dtype=np.float32)
        y, sequence = compiled(x)
        np.testing.assert_array_equal(y, x + 2)
        compiled(x + 50)
        np.testing.assert_array_equal(np.concatenate(sequence), x + 1)


def test_constants_of_kernels_and_opaque_steps() -> None:
    rows = buffers(
        ("x", "float32", [3], "input"),
        ("c", "float32", [3], "constant"),
        ("d", "float32", [3], "constant"),
        ("t", "float32", [3], "intermediate"),
        ("y", "float32", [3], "output"),
    )
    steps = [kernel("add", [1], [3], 3, [1]), opaque("AddConstant", (3, 2), (4,))]
    compiled = model(
        program(rows, steps), [floats(1, 2, 3), floats(5, 6, 7).tobytes()], evaluate=evaluate
    )
    np.testing.assert_array_equal(compiled(floats(0, 0, 0)), floats(7, 9, 11))
    assert compiled.memory().constants == 24


X = ("x", "float32", [N], "input")
Y = ("y", "float32", [N], "output")


@pytest.mark.parametrize(
    ("rows", "steps", "words"),
    [
        ([X, Y], [], "never written"),
        ([X, Y, ("t", "float32", [N], "intermediate")], [kernel("add", [2], [1], N)], "before"),
        ([X, Y], [kernel("add", [0], [1], K)], "nothing determines 'k'"),
        ([X, Y], [kernel("add", [1], [0], N)], "before it is written|not made here"),
        ([X, Y], [kernel("nonsense", [0], [1], N)], "no function 'nonsense'"),
        (
            [X, ("y", "float32", [K], "output")],
            [kernel("add", [0], [1], N), BindStep(0, ("k",))],
            "before its",
        ),
        ([X, Y, ("c", "float32", [3], "constant")], [kernel("add", [2], [1], N)], "no data"),
        ([X, Y], [kernel("add", [0], [1], N), opaque("Identity", (0,), (1,))], "written twice"),
    ],
)
def test_contradictions_are_refused(rows: Any, steps: Any, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        model(program(buffers(*rows), steps), evaluate=evaluate)


def test_opaque_steps_need_a_reference() -> None:
    rows = buffers(X, ("y", "float32", [K], "output"))
    with pytest.raises(ArtifactError, match="Identity"):
        model(program(rows, [opaque("Identity", (0,), (1,))]))


def test_guards_on_inputs_hold_for_every_call() -> None:
    scope = Scope()
    n, m = scope.declare("n", 0, 100), scope.declare("m", 0, 100)
    scope.assume_equal(m, 2 * n)
    rows = buffers(
        ("a", "float32", [n], "input"),
        ("b", "float32", [m], "input"),
        ("y", "float32", [n], "output"),
    )
    compiled = model(program(rows, [kernel("add", [0], [2], n, [1])], scope))
    for _ in range(2):
        np.testing.assert_array_equal(compiled(floats(1), floats(1, 2)), floats(2))
        with pytest.raises(DimensionError):
            compiled(floats(1), floats(1, 2, 3))
