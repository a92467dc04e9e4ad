"""Instruction set levels, and the way from an LLVM module to an object file for one of them.

A level fixes the processor name and features that LLVM compiles for, so the same module gives the
same bytes on every machine. Imports ``inlining`` and target. Read :class:`Level`, ``LEVELS`` and
:func:`compile_object`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from functools import lru_cache

import llvmlite.binding as llvm
from llvmlite import ir

from tilewright.backend.cpu.inlining import inline_calls
from tilewright.target import InstructionTile

_LOCK = threading.RLock()
_PASSED = 16  # vectors that LLVM's calling convention passes in registers at most
_SPARE = 4  # registers: of an instruction with three operands and a result of its own


@dataclass(frozen=True)
class Level:
    """One instruction set level.

    ``processor`` and ``adjustments`` (LLVM feature switches) select the target machine;
    ``features`` are the names, as LLVM and the artifact spell them, that a host must have.
    ``vector_bytes`` and ``registers`` describe the vector register file; ``temporaries`` of them
    are taken where a multiply-add is two instructions, or cannot read one operand from memory.
    ``dots`` are the types of narrow elements of which an instruction sums several products, ``isa``
    is the instruction set as descriptions of machines name it. ``matrix`` names the matrix unit,
    whose registers hold whole tiles; such a level is generated where it is asked for by name.
    """

    name: str
    processor: str
    adjustments: str
    features: tuple[str, ...]
    vector_bytes: int
    registers: int
    has_fma: bool
    has_rounding: bool
    has_half_conversion: bool
    temporaries: int = 0
    triple: str = "x86_64-unknown-linux-gnu"
    dots: tuple[str, ...] = ()
    isa: str = "x86-64"
    matrix: str = ""

    def serves(self, narrow: str | None) -> bool:
        """Whether it is for code that has products of ``narrow`` elements, or for any code."""
        return not self.dots or narrow in self.dots

    @property
    def is_usual(self) -> bool:
        """Whether it is generated without being named; code for matrix units never ran on one."""
        return not self.matrix

    def has_instruction(self, tile: InstructionTile) -> bool:
        """Whether code for the level uses an instruction tile of a machine."""
        element = "uint8" if tile.dtype == "int8" else tile.dtype
        return element in self.dots and (tile.m == 1 or tile.name == self.matrix)

    @property
    def vector_call(self) -> str:
        """LLVM's name of the calling convention that passes most vectors in registers."""
        return "x86_regcallcc" if self.triple.startswith("x86_64") else "fastcc"

    @property
    def most_passed(self) -> int:
        """How many vectors a call passes in registers.

        Some stay free: LLVM may put instructions in front of those that take what a function is
        given out of its registers, and ends the process where it finds no register for them. A
        vector may be longer than those that the processor has; it takes several, then.
        """
        registers, size = self.registers, self.vector_bytes
        if "avx" in self.features and "avx512f" not in self.features:
            registers, size = AVX2.registers, AVX2.vector_bytes
        return min(_PASSED, registers - _SPARE) // max(1, self.vector_bytes // size)

    @property
    def has_lookup(self) -> bool:
        """Whether an instruction picks elements of a register by indices in another."""
        return self.isa in ("avx2", "avx512")

    @property
    def has_masks(self) -> bool:
        """Whether registers of their own hold masks, under which any instruction may run."""
        return self.isa == "avx512"

    def lanes(self, element_bytes: int) -> int:
        """Elements of this size in one vector register."""
        return self.vector_bytes // element_bytes


_AVX2_FEATURES = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt", "xsave")
_AVX512_FEATURES = (*_AVX2_FEATURES, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

BASELINE = Level("x86-64", "x86-64", "", (), 16, 16, False, False, False, temporaries=4)
AVX2 = Level("avx2", "x86-64-v3", "", _AVX2_FEATURES, 32, 16, True, True, True, isa="avx2")
AVX512 = Level(
    "avx512", "x86-64-v4", "-prefer-256-bit", _AVX512_FEATURES, 64, 32, True, True, True,
    isa="avx512",
)  # fmt: skip
# With instructions for sums of products of narrow elements; used where such are asked for.
AVX512_VNNI = replace(
    AVX512,
    name="avx512-vnni",
    adjustments="-prefer-256-bit,+avx512vnni",
    features=(*_AVX512_FEATURES, "avx512vnni"),
    dots=("uint8",),
)
AVX512_BF16 = replace(
    AVX512,
    name="avx512-bf16",
    adjustments="-prefer-256-bit,+avx512bf16",
    features=(*_AVX512_FEATURES, "avx512bf16"),
    dots=("bfloat16",),
)
AVX512_AMX = replace(
    AVX512,
    name="avx512-amx",
    adjustments="-prefer-256-bit,+avx512vnni,+avx512bf16,+amx-tile,+amx-int8,+amx-bf16",
    features=(
        *_AVX512_FEATURES, "avx512vnni", "avx512bf16", "amx-tile", "amx-int8", "amx-bf16",
    ),
    dots=("uint8", "bfloat16"),
    matrix="amx",
)  # fmt: skip
# For cross-compiling alone: the linker and the runtime know x86-64 only.
NEON = Level(
    "neon", "neoverse-n1", "", (), 16, 32, True, True, True, 4, "aarch64-unknown-linux-gnu",
    isa="neon",
)  # fmt: skip

LEVELS: dict[str, Level] = {
    level.name: level for level in (BASELINE, AVX2, AVX512, AVX512_VNNI, AVX512_BF16, AVX512_AMX)
}


@dataclass(frozen=True)
class ModuleText:
    """A module in LLVM's language, and those of functions that become a part of its own.

    ``straight`` code has neither loops nor memory that it writes: it is found out what is computed
    twice, and nothing else. That takes half of the time, for code that is as fast.
    """

    text: str
    inlined: tuple[str, ...] = ()
    straight: bool = False


@dataclass
class _Initialisation:
    done: bool = False


_STATE = _Initialisation()


def _initialise() -> None:
    with _LOCK:
        if not _STATE.done:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
            # Loops are written with the addresses they need; LLVM's rewriting of them takes most
            # of the time of code generation and gains nothing.
            llvm.set_option("", "-disable-lsr")
            # A loop that copies stays one. The C library takes a string instruction for more than
            # short rows, which takes twelve times as long where the target begins less than a line
            # after the source, pages aside (Zen 4), and its call takes longer than a short row.
            llvm.set_option("", "-disable-loop-idiom-memcpy")
            _STATE.done = True


def host_levels() -> list[Level]:
    """The levels whose features this processor has, the highest last."""
    _initialise()
    present = llvm.get_host_cpu_features()
    return [
        level
        for level in LEVELS.values()
        if all(present.get(feature, False) for feature in level.features)
    ]


def host_level(narrow: str | None = None) -> Level:
    """The highest level of this processor that is generated without being named.

    Levels that differ only in sums of narrow products count where ``narrow`` is their type.
    """
    return [level for level in host_levels() if level.serves(narrow) and level.is_usual][-1]


def target_machine(level: Level, effort: int = 3) -> llvm.TargetMachine:
    """LLVM's target machine for ``level``: position independent, small code model.

    ``effort`` is LLVM's level of code generation, 0 to 3.
    """
    _initialise()
    target = llvm.Target.from_triple(level.triple)
    return target.create_target_machine(
        cpu=level.processor,
        features=level.adjustments,
        opt=effort,
        reloc="pic",
        codemodel="small",
    )


def optimise(
    module: ir.Module | ModuleText | str, level: Level
) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """Parse, verify and optimise a module for ``level``.

    Raises ``RuntimeError`` (from llvmlite) when the module is not valid LLVM IR.
    """
    given = module if isinstance(module, ModuleText) else ModuleText(str(module))
    machine = target_machine(level, 1 if given.straight else 3)
    context = llvm.create_context()
    parsed = llvm.parse_assembly(given.text, context)
    parsed.triple = level.triple
    parsed.data_layout = str(machine.target_data)
    parsed.verify()
    # The third level takes two thirds more time, for code that is not faster.
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization = True
    tuning.loop_interleaving = True
    tuning.loop_unrolling = True
    tuning.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, tuning)
    if given.straight:
        passes = llvm.create_new_module_pass_manager()
        passes.add_new_gvn_pass()
    else:
        passes = builder.getModulePassManager()
    passes.run(parsed, builder)
    others = [llvm.parse_bitcode(_optimised(text, level), context) for text in given.inlined]
    inline_calls(parsed, builder, others)
    return parsed, machine


@lru_cache(maxsize=256)  # a few kilobytes each; kernels of a model have most of theirs in common
def _optimised(text: str, level: Level) -> bytes:
    """A module that is optimised before it becomes a part of others, as LLVM's bit code."""
    return optimise(text, level)[0].as_bitcode()


def compile_object(module: ir.Module | ModuleText | str, level: Level) -> bytes:
    """An ELF object file with the module's functions, the same bytes on every host.

    Raises ``RuntimeError`` (from llvmlite) when the module is not valid LLVM IR.
    """
    with _LOCK:
        parsed, machine = optimise(module, level)
        return machine.emit_object(parsed)


def assembly(module: ir.Module | ModuleText | str, level: Level) -> str:
    """The assembly text of what :func:`compile_object` would produce."""
    with _LOCK:
        parsed, machine = optimise(module, level)
        return machine.emit_assembly(parsed)
