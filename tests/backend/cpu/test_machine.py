"""Levels, and compilation to object files."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from llvmlite import ir

from tilewright.backend.cpu import machine
from tilewright.ir.dtype import DType

LEVELS = list(machine.LEVELS.values())


def _module(loops: Any, level: machine.Level) -> ir.Module:
    module = ir.Module("test")
    loops.add_function(module, "exponential", level, DType.FLOAT32)
    loops.add_function(module, "truncated_remainder", level, DType.FLOAT64)
    return module


def test_levels_grow() -> None:
    plain = [level for level in LEVELS if not level.dots]
    assert [level.name for level in plain] == ["x86-64", "avx2", "avx512"]
    assert [level.lanes(4) for level in plain] == [4, 8, 16]
    assert [level.lanes(8) for level in plain] == [2, 4, 8]
    assert [level.registers for level in plain] == [16, 16, 32]
    for lower, higher in itertools.pairwise(plain):
        assert set(lower.features) < set(higher.features)


def test_levels_with_dot_products_extend_the_highest() -> None:
    found = {level.name: level for level in LEVELS if level.dots}
    assert list(found) == ["avx512-vnni", "avx512-bf16", "avx512-amx"]
    for level in found.values():
        assert set(level.features) > set(machine.LEVELS["avx512"].features)


def test_host_level_is_known() -> None:
    assert machine.host_level() in LEVELS and not machine.host_level().dots


@pytest.mark.parametrize(
    ("narrow", "best"),
    [(None, "avx512"), ("uint8", "avx512-vnni"), ("bfloat16", "avx512-bf16")],
)
def test_dot_products_count_only_where_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, narrow: str | None, best: str
) -> None:
    everything = {feature: True for level in LEVELS for feature in level.features}
    monkeypatch.setattr(machine.llvm, "get_host_cpu_features", lambda: everything)
    assert machine.host_level(narrow).name == best


@pytest.mark.parametrize("level", LEVELS, ids=list(machine.LEVELS))
def test_objects_are_elf_and_reproducible(loops: Any, level: machine.Level) -> None:
    text = str(_module(loops, level))
    first = machine.compile_object(text, level)
    assert first[:5] == b"\x7fELF\x02"
    assert b"exponential" in first and b"fmod" in first
    assert machine.compile_object(_module(loops, level), level) == first


def test_levels_differ(loops: Any) -> None:
    plain = [level for level in LEVELS if not level.dots]
    objects = {machine.compile_object(_module(loops, level), level) for level in plain}
    assert len(objects) == len(plain)


def test_threads_compile_the_same_bytes(loops: Any) -> None:
    level = machine.LEVELS["avx2"]
    text = str(_module(loops, level))
    with ThreadPoolExecutor(4) as pool:
        objects = list(pool.map(machine.compile_object, [text] * 8, [level] * 8))
    assert len(set(objects)) == 1


def test_a_loop_that_copies_calls_no_function() -> None:
    text = """
        define void @f(ptr noalias %source, ptr noalias %target, i64 %count) {
        entry:
          br label %loop
        loop:
          %i = phi i64 [0, %entry], [%next, %loop]
          %from = getelementptr float, ptr %source, i64 %i
          %to = getelementptr float, ptr %target, i64 %i
          %value = load float, ptr %from
          store float %value, ptr %to
          %next = add nsw i64 %i, 1
          %more = icmp slt i64 %next, %count
          br i1 %more, label %loop, label %done
        done:
          ret void
        }
    """
    code = machine.assembly(text, machine.LEVELS["avx512"])
    assert "memcpy" not in code and "%zmm" in code


def test_wide_registers_are_used_on_avx512(loops: Any) -> None:
    level = machine.LEVELS["avx512"]
    module = ir.Module("test")
    loops.add_function(module, "add", level, DType.FLOAT32)
    assert "%zmm" in machine.assembly(module, level)


def test_invalid_modules_are_rejected() -> None:
    with pytest.raises(RuntimeError):
        machine.compile_object("define void @f() { ret i32 1 }", machine.LEVELS["avx2"])
