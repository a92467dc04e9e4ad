"""Kernels that do not need each other run as one job: which ones, and with the right results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.runtime_kit import buffers, kernel, model, program
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import Program
from tilewright.shape import Scope
from tilewright.support.errors import ExecutionError

WORK = 50_000  # nanoseconds: more than a thread is worth
FEW = 5_000  # that one thread is worth
APART = 4096  # bytes between the scratch memory of two threads


def sums(reads: list[int], kept: set[int], work: list[int], scratch: list[int]) -> Program:
    """Tensor t + 1 is tensor ``reads[t]`` and t + 1; tensor 0 is the input."""
    scope = Scope()
    n = scope.declare("n", 0, 1 << 20)
    rows: list[Any] = [("x", "float32", [n], "input")]
    for t in range(1, len(reads) + 1):
        kind = "output" if t in kept else "intermediate"
        rows.append((f"t{t}", "float32", [n], kind))
    steps = [
        kernel("add", [source], [t + 1], n, [t + 1], work=work[t], scratch=scratch[t])
        for t, source in enumerate(reads)
    ]
    return program(buffers(*rows), steps, scope)


def jobs(compiled: CompiledModel, size: int) -> list[list[int]]:
    """The steps of each job of a call."""
    found: list[list[int]] = []
    end = 0
    for use in compiled.explain(n=size):
        if use.step >= end:
            found.append([])
            end = use.step + use.steps
        found[-1].append(use.step)
    return found


def joined(reads: list[int], kept: set[int], threads: int = 4) -> list[list[int]]:
    made = sums(reads, kept, [WORK] * len(reads), [0] * len(reads))
    return jobs(model(made, num_threads=threads), 1000)


def test_what_reads_one_tensor_is_one_job() -> None:
    assert joined([0, 0, 0], {1, 2, 3}) == [[0, 1, 2]]


def test_what_reads_another_result_waits_for_it() -> None:
    assert joined([0, 1, 0], {2, 3}) == [[0], [1, 2]]


def test_memory_is_used_again_where_it_is_much() -> None:
    """Tensor 3 may lie where tensor 1 was, which tensor 2 is made of."""
    made = sums([0, 1, 0, 3, 2], {4, 5}, [WORK] * 5, [0] * 5)
    compiled = model(made, num_threads=4)
    assert jobs(compiled, 1000) == [[0], [1, 2], [3, 4]]
    assert jobs(compiled, 1 << 19) == [[0], [1], [2], [3, 4]]
    for size in (1000, 1 << 19):
        x = np.arange(size, dtype=np.float32)
        found = compiled.run({"x": x})
        np.testing.assert_array_equal(found["t4"], x + np.float32(3) + np.float32(4))
        np.testing.assert_array_equal(
            found["t5"], x + np.float32(1) + np.float32(2) + np.float32(5)
        )
    assert model(made, num_threads=1).memory(n=1000).arena == 2 * 4032
    assert compiled.memory(n=1000).arena == 3 * 4032
    assert compiled.memory(n=1 << 19).arena == 2 << 21


def test_one_thread_has_no_jobs() -> None:
    assert joined([0, 0, 0], {1, 2, 3}, threads=1) == [[0], [1], [2]]


def test_no_more_than_eight_are_one_job() -> None:
    assert [len(job) for job in joined([0] * 11, set(range(1, 12)))] == [8, 3]


@pytest.mark.parametrize(("work", "expected"), [(FEW, [[4, 5, 6, 7]]), (WORK, [[4], [5, 6, 7, 8]])])
def test_more_memory_is_taken_where_threads_would_have_nothing_to_do(
    work: int, expected: list[list[int]]
) -> None:
    """Tensor 6 may lie where tensor 1 was, of which tensor 5 is made; that saves one in six."""
    works = [0] * 4 + [work, work] + [0] * 4
    made = sums([0, 0, 0, 0, 1, 2, 3, 4, 5, 6], {7, 8, 9, 10}, works, [0] * 10)
    compiled = model(made, num_threads=4)
    assert [job for job in jobs(compiled, 1 << 19) if {4, 5} & set(job)] == expected
    assert compiled.memory(n=1 << 19).arena == (6 if work == FEW else 5) << 21


def test_threads_get_little_more_scratch_than_kernels_need_by_themselves() -> None:
    """Two kernels of little work have a thread each; together there would be four."""
    little = 2 * 3000
    for scratch, expected in ((1 << 20, [[0], [1]]), (1 << 15, [[0, 1]]), (0, [[0, 1]])):
        compiled = model(sums([0, 0], {1, 2}, [little, little], [scratch, 0]), num_threads=8)
        assert jobs(compiled, 1000) == expected
        each = scratch + APART if scratch else 0
        assert compiled.memory(n=1000).scratch == each * (4 if scratch == 1 << 15 else 2)


def test_threads_have_scratch_on_pages_of_their_own() -> None:
    """Hardware fetches lines beyond what a thread goes through, up to the end of a page."""
    for threads, each in ((1, 64), (2, 64 + APART)):
        compiled = model(sums([0], {1}, [1 << 20], [64]), num_threads=threads)
        assert compiled.memory(n=1000).scratch == threads * each


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_programs_give_the_right_numbers(threads: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 14))
    reads = [data.draw(st.integers(0, t)) for t in range(count)]
    unread = set(range(1, count + 1)) - set(reads)
    kept = unread | data.draw(st.sets(st.integers(1, count)))
    works = st.lists(st.sampled_from([0, 4000, WORK]), min_size=count, max_size=count)
    sizes = st.lists(st.sampled_from([0, 0, 64, 4096]), min_size=count, max_size=count)
    made = sums(reads, kept, data.draw(works), data.draw(sizes))
    compiled = model(made, num_threads=threads)
    for size in (0, 1, 2, 7, 1000):
        x = np.arange(size, dtype=np.float32)
        tensors = [x]
        for t, source in enumerate(reads):
            tensors.append(tensors[source] + np.float32(t + 1))
        found = compiled.run({"x": x})
        for t in kept:
            np.testing.assert_array_equal(found[f"t{t}"], tensors[t])


def test_an_error_names_the_kernel_of_the_job_that_failed() -> None:
    scope = Scope()
    n, m = scope.declare("n", 1, 100), scope.declare("m", 1, 100)
    rows = buffers(
        ("table", "float32", [m], "input"),
        ("index", "int64", [n], "input"),
        ("x", "float32", [n], "input"),
        ("y", "float32", [n], "output"),
        ("z", "float32", [n], "output"),
    )
    check = "index {0} is out of bounds for an axis of size {1}"
    steps = [
        kernel("add", [2], [3], n, [1], work=WORK),
        kernel("gather", [0, 1], [4], n, [m], work=WORK, checks=[check]),
    ]
    compiled = model(program(rows, steps, scope), num_threads=4)
    assert [use.steps for use in compiled.explain(n=9, m=5)] == [2, 1]
    table, x = np.arange(5, dtype=np.float32), np.ones(9, np.float32)
    index = np.array([0, 1, 2, 3, 4, 0, 9, 1, 2])
    with pytest.raises(ExecutionError, match="Index 9 is out of bounds") as e:
        compiled.run({"table": table, "index": index, "x": x})
    assert "gather of 4" in str(e.value)
    index[6] = 3
    found = compiled.run({"table": table, "index": index, "x": x})
    np.testing.assert_array_equal(found["z"], table[index])
    np.testing.assert_array_equal(found["y"], x + 1)
