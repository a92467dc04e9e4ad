"""The linker: images do what the object says, and everything else is refused."""

from __future__ import annotations

import contextlib
import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.runtime_kit import EXP, LEVEL, TABLE, assemble, buffers, image, kernel, model, program
from tilewright.backend.cpu.link import link
from tilewright.runtime import _native
from tilewright.runtime.program import CodeImage
from tilewright.support.errors import ArtifactError, TilewrightError


def externals(made: CodeImage) -> tuple[str, ...]:
    """The external symbols that the code of an image needs, sorted."""
    return tuple(sorted({symbol for _, symbol, _ in made.fixups if symbol}))


def test_functions_and_externals() -> None:
    made = image()
    assert set(made.functions) == {"add", "exponential", "scan", "gather", "from_table"}
    assert externals(made) == ("expf", "memcpy")
    assert 0 < made.code_size <= len(made.data)
    assert all(offset < made.code_size for offset in made.functions.values())


def test_addresses_in_data_are_relative_to_the_base() -> None:
    made = link([assemble(TABLE)], LEVEL, ())
    assert [symbol for _, symbol, _ in made.fixups] == [""]
    compiled = model(
        program(
            buffers(("x", "int64", [1], "input"), ("y", "int64", [2], "output")),
            [kernel("from_table", [0], [1], 2)],
        )
    )
    assert compiled(np.array([100])).tolist() == [107, 109]


def test_same_object_same_image() -> None:
    assert link([assemble(EXP)], LEVEL, ()) == link([assemble(EXP)], LEVEL, ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "@counter = global i64 3\ndefine void @f() { store i64 4, ptr @counter ret void }",
            "writab",
        ),
        ("@zeros = global [9 x i64] zeroinitializer\ndefine ptr @f() { ret ptr @zeros }", "writab"),
        (
            "@t = thread_local global i64 3\ndefine i64 @f() { %v = load i64, ptr @t ret i64 %v }",
            "thread-local|writab|position-independent",
        ),
    ],
)
def test_state_is_refused(text: str, words: str) -> None:
    with pytest.raises(TilewrightError, match=words):
        link([assemble(text)], LEVEL, ())


def test_address_of_an_external_function() -> None:
    text = "declare double @cos(double)\ndefine ptr @f() { ret ptr @cos }"
    made = link([assemble(text)], LEVEL, ())
    assert externals(made) == ("cos",)
    _native.Image(made.data, dict(made.functions), list(made.fixups))


def test_objects_call_each_other() -> None:
    library = "define i64 @three() { ret i64 3 }"
    caller = "declare i64 @three()\ndefine i64 @f() { %v = call i64 @three() ret i64 %v }"
    made = link([assemble(caller)], LEVEL, (), [assemble(library)])
    assert list(made.functions) == ["f"] and externals(made) == ()
    code = _native.Image(made.data, dict(made.functions), list(made.fixups))
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("f"))() == 3
    assert set(link([assemble(caller), assemble(library)], LEVEL, ()).functions) == {"f", "three"}


def test_what_is_defined_twice_is_refused() -> None:
    text = "define i64 @three() { ret i64 3 }"
    with pytest.raises(TilewrightError, match="'three' is defined twice"):
        link([assemble(text)], LEVEL, (), [assemble(text)])


def test_unknown_external_is_refused_when_loaded() -> None:
    made = link(
        [assemble("declare void @system()\ndefine void @f() { call void @system() ret void }")],
        LEVEL,
        (),
    )
    with pytest.raises(ArtifactError, match="system"):
        _native.Image(made.data, dict(made.functions), list(made.fixups))


@pytest.mark.parametrize(
    ("functions", "fixups"),
    [
        ({"f": 64}, []),
        ({"f": -1}, []),
        ({}, [(60, "", 0)]),
        ({}, [(-8, "", 0)]),
        ({}, [(1 << 62, "", 0)]),
    ],
)
def test_offsets_outside_the_image(
    functions: dict[str, int], fixups: list[tuple[int, str, int]]
) -> None:
    with pytest.raises(ArtifactError, match="outside"):
        _native.Image(bytes(64), functions, fixups)


OBJECT = assemble(EXP + TABLE)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(OBJECT) - 1), st.integers(0, 255)), max_size=4),
    st.integers(0, len(OBJECT)),
)
def test_damaged_objects_are_refused_or_linked(changes: list[tuple[int, int]], length: int) -> None:
    damaged = bytearray(OBJECT)
    for place, value in changes:
        damaged[place] = value
    for data in (bytes(damaged), OBJECT[:length]):
        with contextlib.suppress(TilewrightError):
            link([data], LEVEL, ())
