"""Triton source compiled for GPUs that are not there, and the limits of what a program takes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace

import pytest

from support.gpu_graphs import attention, every_kind
from support.gpu_kit import compiled, needs_triton, written
from support.graph_kit import Space
from tilewright.backend.gpu import offline
from tilewright.backend.gpu.kernel import Launch
from tilewright.backend.gpu.offline import compile_offline
from tilewright.support.errors import UnsupportedError
from tilewright.target import preset

NOTHING = Launch(0, {}, (), 4)
REGISTERS = 1 << 16  # of a multiprocessor, for all threads of its programs


@pytest.fixture(scope="module")
def compiler() -> Iterator[Executor]:
    """A process of its own: where Triton was made to interpret, it cannot compile."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("name", every_kind())
def test_every_kernel_compiles_for_ampere_and_hopper(name: str, compiler: Executor) -> None:
    for target in (preset("a100"), preset("h100")):
        for kernel, made in compiler.submit(compiled, name, target.name).result():
            assert f".target {target.isa}" in made.ptx
            assert f".entry {kernel}(" in made.ptx
            assert made.cubin.startswith(b"\x7fELF")
            assert made.registers <= target.vector_registers
            assert made.registers * made.threads <= REGISTERS
            assert made.threads <= target.block_threads
            assert made.shared <= target.block_shared_bytes
            assert made.spilled <= 512, "tiles hardly fit the registers"


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("depth", [64, 256])
def test_attention_has_a_variant_for_little_shared_memory(depth: int, compiler: Executor) -> None:
    large, small = compiler.submit(attention_shared_bytes, depth).result()
    assert large <= preset("a100").block_shared_bytes
    assert small <= preset("rtx3090").block_shared_bytes


def attention_shared_bytes(depth: int) -> list[int]:
    """What a program of each variant takes on Ampere."""
    (variants,) = written(attention(Space(), "tensor", depth, depth))
    target = preset("a100")
    made = [
        kernel.launch({"b": 8, "h": 12, "m": 384, "n": 384}, target.units) for kernel in variants
    ]
    return [
        compile_offline(kernel, launch, target).shared
        for kernel, launch in zip(variants, made, strict=True)
        if launch is not None
    ]


def test_programs_that_need_more_shared_memory_than_there_is_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Triton itself compiles them, and only a launch would fail."""

    def large(*_: object) -> tuple[SimpleNamespace, dict[str, int]]:
        return SimpleNamespace(metadata=SimpleNamespace(shared=1 << 18, num_warps=4)), {"REG": 32}

    monkeypatch.setattr(offline, "_compiled", large)
    ((kernel, *_),) = written(attention(Space(), "none", 256, 256))
    with pytest.raises(UnsupportedError, match="262144 bytes of shared memory") as caught:
        compile_offline(kernel, NOTHING, preset("a100"))
    assert caught.value.hint == "Choose a variant of the kernel with smaller tiles"


@pytest.mark.parametrize("target", ["t4", "zen4"])
def test_other_machines_are_refused(target: str) -> None:
    ((kernel, *_),) = written(attention(Space(), "none"))
    with pytest.raises(UnsupportedError, match="sm_80 and newer"):
        compile_offline(kernel, NOTHING, preset(target))


def test_without_triton_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    ((kernel, *_),) = written(attention(Space(), "none"))
    with pytest.raises(UnsupportedError, match="Triton is not installed") as caught:
        compile_offline(kernel, NOTHING, preset("h100"))
    assert caught.value.hint == 'Install it with pip install "tilewright[gpu]"'


def test_a_process_that_interprets_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    ((kernel, *_),) = written(attention(Space(), "none"))
    with pytest.raises(UnsupportedError, match="TRITON_INTERPRET"):
        compile_offline(kernel, NOTHING, preset("h100"))
