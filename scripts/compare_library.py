"""Let another library's matrix product compete with the generated ones, and say where it wins.

    python scripts/compare_library.py openblas
    pip install onednn-cpu-gomp; python scripts/compare_library.py onednn

The library's function for float32 (``cblas_sgemm`` of the OpenBLAS that comes with numpy, or
``dnnl_sgemm`` of oneDNN) is registered as a library kernel, with a price that is measured here
for several ranges of sizes. A model of one product is compiled; at every shape the call, which
takes the variant with the least price, is timed beside the same model without the library.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product as cartesian
from pathlib import Path

import numpy as np
from onnx.parser import parse_model

from tilewright.bench.clock import SystemClock
from tilewright.bench.measure import Settings, measure
from tilewright.bench.variants import chosen_variants
from tilewright.compile import compile_stages
from tilewright.cost import Machine
from tilewright.ir.kernel import Kernel
from tilewright.runtime.artifact import ArtifactContents
from tilewright.runtime.model import CompiledModel
from tilewright.shape import (
    Expr,
    Scope,
    ceil_div,
    constant,
    less_equal,
    maximum,
    minimum,
    select,
    symbol,
)
from tilewright.shape import product as size_product
from tilewright.tile.library import LibraryCall, LibraryKernel, MatrixProduct, register
from tilewright.tile.variants import THREADS

MODEL = """
<ir_version: 9, opset_import: ["" : 18]>
product (float[rows, depth] x, float[depth, columns] w) => (float[rows, columns] y) {
    y = MatMul (x, w)
}"""
BLOCK = 96  # rows of a task
PROBES = (1, 6, 48, 384)  # rows, columns and depths of products that are timed first
LIMITS = (1, 16, 128)  # up to which sizes the rate of each but the last one stands
CALL = 3_000_000  # picoseconds of a Python function that is called by a kernel
SHAPES = ((1, 1024, 1024), (16, 64, 64), (64, 768, 768), (300, 100, 50), (384, 384, 384),
          (512, 3072, 768), (2000, 10, 2000), (1031, 1031, 1031))  # fmt: skip

# Rows, columns and depth, then the addresses of left operand, right operand and result.
Product = Callable[[int, int, int, int, int, int], None]


def openblas() -> Product:
    """The product of the OpenBLAS in numpy's wheel, on the calling thread alone."""
    folder = Path(np.__file__).resolve().parent.parent / "numpy.libs"
    (path,) = folder.glob("libscipy_openblas64_*")
    library = ctypes.CDLL(str(path))
    library.scipy_openblas_set_num_threads64_(1)
    function = library.scipy_cblas_sgemm64_
    number, pointer, scalar = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
    function.argtypes = [
        ctypes.c_int, ctypes.c_int, ctypes.c_int, number, number, number, scalar, pointer, number,
        pointer, number, scalar, pointer, number,
    ]  # fmt: skip
    function.restype = None
    row_major, plain = 101, 111

    def run(rows: int, columns: int, depth: int, left: int, right: int, result: int) -> None:
        function(
            row_major, plain, plain, rows, columns, depth, 1.0, left, depth, right, columns, 0.0,
            result, columns,
        )  # fmt: skip

    return run


def onednn() -> Product:
    """The product of the oneDNN that is installed beside Python, on the calling thread alone."""
    os.environ["OMP_NUM_THREADS"] = "1"
    library = ctypes.CDLL(str(Path(sys.prefix) / "lib" / "libdnnl.so"))
    function = library.dnnl_sgemm
    number, pointer, scalar = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
    function.argtypes = [
        ctypes.c_char, ctypes.c_char, number, number, number, scalar, pointer, number, pointer,
        number, scalar, pointer, number,
    ]  # fmt: skip
    function.restype = ctypes.c_int

    def run(rows: int, columns: int, depth: int, left: int, right: int, result: int) -> None:
        status = function(
            b"N", b"N", rows, columns, depth, 1.0, left, depth, right, columns, 0.0, result, columns
        )
        if status != 0:
            raise RuntimeError(f"dnnl_sgemm ended with status {status}")

    return run


def picoseconds(product: Product, rows: int, columns: int, depth: int) -> float:
    """What one multiply-add takes in a product of these sizes, on one thread."""
    left, right = np.ones((rows, depth), np.float32), np.ones((depth, columns), np.float32)
    result = np.empty((rows, columns), np.float32)
    best = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        product(rows, columns, depth, *(array.ctypes.data for array in (left, right, result)))
        best = min(best, time.perf_counter() - started)
    return best / (rows * columns * depth) * 1e12


def price_of(product: Product) -> Callable[[MatrixProduct], Expr]:
    """The time of products on one thread: for each range of sizes the rate at one of them."""
    rates = {
        sizes: round(1000 * picoseconds(product, *sizes)) for sizes in cartesian(PROBES, repeat=3)
    }

    def rate(wanted: tuple[Expr, ...], known: tuple[int, ...]) -> Expr:
        if not wanted:
            return constant(rates[known])
        found = rate(wanted[1:], (*known, PROBES[-1]))
        for probe, limit in reversed(tuple(zip(PROBES, LIMITS, strict=False))):
            smaller = rate(wanted[1:], (*known, probe))
            found = select(less_equal(wanted[0], limit), smaller, found)
        return found

    def price(found: MatrixProduct) -> Expr:
        sizes = (found.rows, found.columns, found.depth)
        return size_product(sizes) * rate(sizes, ()) // 1000

    return price


def library_kernel(name: str, product: Product) -> LibraryKernel:
    """The library's product as a kernel that may stand for those of a plan."""
    price = price_of(product)

    def fits(kernel: Kernel, _: Scope, __: Machine) -> LibraryCall | None:
        found = MatrixProduct.of(kernel)
        if found is None:
            return None
        tasks = ceil_div(found.rows, BLOCK)
        shared = price(found) // maximum(minimum(symbol(THREADS), tasks), 1) + CALL
        return LibraryCall(
            (found.left, found.right), (found.rows, found.columns, found.depth), shared, tasks
        )

    def run(sizes: tuple[int, ...], tensors: tuple[int, ...], begin: int, end: int) -> None:
        rows, columns, depth = sizes
        left, right, result = tensors
        first, last = begin * BLOCK, min(end * BLOCK, rows)
        product(
            last - first, columns, depth, left + 4 * first * depth, right,
            result + 4 * first * columns,
        )  # fmt: skip

    return LibraryKernel(name, fits, run, sizes=3, tensors=3)


def main() -> None:
    """Register, compile, check, time, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("library", choices=("openblas", "onednn"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9, help="blocks of timing for each shape")
    given = parser.parse_args()
    product = {"openblas": openblas, "onednn": onednn}[given.library]()
    proto = parse_model(MODEL)
    alone = compile_stages(proto).contents
    kernel = library_kernel(given.library, product)
    register(kernel)
    both = compile_stages(proto).contents
    (program,) = both.programs.values()
    (choice,) = program.choices

    def model(contents: ArtifactContents) -> CompiledModel:
        return CompiledModel.from_contents(contents, num_threads=given.threads)

    models = {"alone": model(alone), "both": model(both)}
    print(f"{'rows x depth x columns':24} {'taken':32} {'time':>10} {'without library':>16}")
    for rows, columns, depth in SHAPES:
        chance = np.random.default_rng(0)
        x = chance.standard_normal((rows, depth), np.float32)
        w = chance.standard_normal((depth, columns), np.float32)
        inputs = {"x": x, "w": w}
        (result,) = models["both"].run(inputs).values()
        np.testing.assert_allclose(result, x @ w, rtol=1e-3, atol=1e-4 * depth**0.5)
        calls = {name: partial(made.run, inputs) for name, made in models.items()}
        settings = Settings(rounds=given.rounds, most_rounds=given.rounds)
        found = measure(calls, None, settings, SystemClock(given.threads))
        sizes = {"rows": rows, "columns": columns, "depth": depth}
        (variant,) = chosen_variants(program, sizes, given.threads)
        print(
            f"{f'{rows} x {depth} x {columns}':24} {choice.names[variant]:32} "
            f"{1e6 * found.seconds('both').median:7.1f} µs "
            f"{found.ratio('alone', 'both').median:15.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
