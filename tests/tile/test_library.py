"""Kernels of other libraries: chosen where their price is the least, right, and named in errors."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx.parser import parse_model

import tilewright as tw
from tilewright.bench.variants import chosen_variants
from tilewright.compile import compile_stages
from tilewright.cost import Machine
from tilewright.ir.kernel import Kernel
from tilewright.runtime.model import CompiledModel
from tilewright.shape import Scope, ceil_div, constant, less, select, symbol
from tilewright.support.errors import ArtifactError, ExecutionError, InputError
from tilewright.tile.library import (
    LibraryCall,
    LibraryKernel,
    MatrixProduct,
    register,
    unregister,
)
from tilewright.tile.variants import THREADS

MODEL = """
<ir_version: 9, opset_import: ["" : 18]>
product (float[rows, 24] x, float[24, columns] w) => (float[rows, columns] y) {
    y = MatMul (x, w)
}"""
LIMIT = 100  # rows from which on the library is said to be faster
BLOCK = 16  # rows of a task

Product = Callable[[tuple[int, ...], tuple[int, ...], int, int], None]


@pytest.fixture
def registered() -> Iterator[Callable[[Product | int], None]]:
    """Registers products of matrices under one name, and forgets them afterwards."""

    def add(function: Product | int) -> None:
        register(LibraryKernel("numpy", fits, function, sizes=3, tensors=3))

    yield add
    unregister("numpy")


def fits(kernel: Kernel, scope: Scope, machine: Machine) -> LibraryCall | None:
    found = MatrixProduct.of(kernel)
    if found is None:
        return None
    assert machine.target.units >= 1 and scope.symbols
    price = select(less(found.rows, LIMIT), 10**15, 1) // symbol(THREADS)
    sizes = (found.rows, found.columns, found.depth)
    return LibraryCall((found.left, found.right), sizes, price, ceil_div(found.rows, BLOCK))


def by_numpy(sizes: tuple[int, ...], tensors: tuple[int, ...], begin: int, end: int) -> None:
    rows, columns, depth = sizes
    last = min(end * BLOCK, rows)
    left, right, result = (
        array(address, shape)
        for address, shape in zip(
            tensors, ((rows, depth), (depth, columns), (rows, columns)), strict=True
        )
    )
    np.matmul(left[begin * BLOCK : last], right, out=result[begin * BLOCK : last])


def array(address: int, shape: tuple[int, int]) -> np.ndarray:
    count = shape[0] * shape[1]
    pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(pointer, (count,)).reshape(shape)


def operands(rows: int, columns: int) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(rows)
    x = chance.standard_normal((rows, 24), np.float32)
    return {"x": x, "w": chance.standard_normal((24, columns), np.float32)}


def test_it_runs_where_it_is_cheaper(registered: Callable[[Product | int], None]) -> None:
    calls: list[int] = []

    def counted(sizes: tuple[int, ...], tensors: tuple[int, ...], begin: int, end: int) -> None:
        calls.append(end - begin)
        by_numpy(sizes, tensors, begin, end)

    registered(counted)
    made = compile_stages(parse_model(MODEL), check=True)
    model = CompiledModel.from_contents(made.contents, num_threads=2)
    (program,) = made.contents.programs.values()
    (choice,) = program.choices
    assert choice.names[-1] == "numpy" and len(choice.names) > 1
    for rows in (0, 1, LIMIT - 1, LIMIT, 1037):
        calls.clear()
        given = operands(rows, 40)
        (result,) = model.run(given).values()
        np.testing.assert_allclose(result, given["x"] @ given["w"], rtol=1e-5, atol=1e-5)
        taken = rows >= LIMIT
        assert sum(calls) == (-(-rows // BLOCK) if taken else 0)
        (variant,) = chosen_variants(program, {"rows": rows, "columns": 40}, 2)
        assert (choice.names[variant] == "numpy") is taken


def test_the_planner_counts_with_it(registered: Callable[[Product | int], None]) -> None:
    registered(by_numpy)
    text = MODEL.replace("y = MatMul (x, w)", "p = MatMul (x, w)\n y = Relu (p)")
    dims = {"rows": (LIMIT, 4096), "columns": (256, 512)}
    (greedy,) = compile_stages(parse_model(text), dims=dims).plans.values()
    made = compile_stages(parse_model(text), dims=dims, plan="optimal")
    (plan,) = made.plans.values()
    assert len(greedy.kernels) == 1 and len(plan.kernels) == 2
    given = operands(300, 300)
    (result,) = CompiledModel.from_contents(made.contents).run(given).values()
    np.testing.assert_allclose(result, np.maximum(given["x"] @ given["w"], 0), rtol=1e-5, atol=1e-5)


def test_an_artifact_names_what_it_needs(
    registered: Callable[[Product | int], None], tmp_path: Path
) -> None:
    registered(by_numpy)
    path = tmp_path / "product.tw"
    tw.compile(parse_model(MODEL)).save(path)
    given = operands(LIMIT, 7)
    unregister("numpy")
    with pytest.raises(ArtifactError, match="library kernel 'numpy'"):
        tw.load(path)
    registered(by_numpy)
    loaded = tw.load(path)
    np.testing.assert_allclose(loaded(**given), given["x"] @ given["w"], rtol=1e-5, atol=1e-5)


def test_a_failure_is_reported(
    registered: Callable[[Product | int], None], caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("no such product")

    registered(failing)
    model = tw.compile(parse_model(MODEL))
    with caplog.at_level(logging.ERROR), pytest.raises(ExecutionError, match="the log says why"):
        model(**operands(LIMIT, 3))
    assert "no such product" in caplog.text
    assert model(**operands(2, 3)).shape == (2, 3)


def test_what_cannot_be_registered(registered: Callable[[Product | int], None]) -> None:
    with pytest.raises(InputError, match="no function at 0"):
        registered(0)
    registered(by_numpy)
    with pytest.raises(InputError, match="already"):
        registered(by_numpy)


def test_a_call_that_does_not_match_its_kernel(
    registered: Callable[[Product | int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(kernel: Kernel, scope: Scope, machine: Machine) -> LibraryCall | None:
        found = fits(kernel, scope, machine)
        return None if found is None else LibraryCall(found.operands, (constant(1),), constant(1))

    register(LibraryKernel("wrong", wrong, by_numpy, sizes=3, tensors=3))
    try:
        with pytest.raises(InputError, match="1 sizes are given, not 3"):
            tw.compile(parse_model(MODEL))
    finally:
        unregister("wrong")


def test_a_product_of_more_than_matrices_is_none() -> None:
    text = MODEL.replace("y = MatMul (x, w)", "p = MatMul (x, w)\n y = Relu (p)")
    (plan,) = compile_stages(parse_model(text)).plans.values()
    assert [MatrixProduct.of(kernel) for kernel in plan.kernels] == [None]
