"""What the compiler hands to the runtime: frozen records of plain data.

A :class:`Program` is a list of steps over numbered buffers whose sizes are expressions in symbols;
a :class:`CodeImage` is the machine code the steps call. Both go to JSON and back without loss
(``program_json``; code bytes and constants travel beside it, see ``artifact``). May import
``shape`` and ``support`` only. Start reading at :class:`Program`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.runtime.ragged_batch import RaggedBatch
from tilewright.runtime.reading import integer, mapping, optional_integer, text
from tilewright.shape import Expr, Guard, SymbolSource, constant

BufferKind = Literal["input", "output", "constant", "intermediate"]
BUFFER_KINDS: tuple[BufferKind, ...] = ("input", "output", "constant", "intermediate")
CONTROL = b"tilewright control flow\n"  # what the payload of an operator with bodies begins with
BUILT_IN = b"tilewright built-in operator\n"  # that of one which the extension computes itself
RAGGED = b"tilewright ragged batch\n"  # that of a step which runs a body for every sequence
LEVELS: tuple[str, ...] = (
    "x86-64", "avx2", "avx512", "avx512-vnni", "avx512-bf16", "avx512-amx",
)  # fmt: skip

# Bytes per element of the dtypes that kernels work on; every other dtype lives in Python objects.
NATIVE_ITEM_SIZES: dict[str, int] = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}


@dataclass(frozen=True)
class Buffer:
    """One tensor of a program.

    ``index`` is the position within its kind (input 0, output 0, constant 0, …). ``packed_bytes``
    is the size in bytes when the contents are not dense row-major of ``shape``.
    """

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    kind: BufferKind
    index: int
    packed_bytes: Expr | None = None


_NONE = constant(0)
_ALWAYS = constant(1)


@dataclass(frozen=True)
class KernelStep:
    """One call of a machine-code function over ``grid`` tasks (0 tasks: the step is skipped).

    ``buffers`` index ``Program.buffers`` in the order the kernel takes them, ``outputs`` are those
    it writes. ``scratch`` is bytes per thread, ``work`` roughly the nanoseconds on one thread.
    ``checks[code - 1]`` is the message for a status code, with {0} and {1} for its details.
    ``variant`` names the variant of a choice that the step belongs to, if there are several, and
    ``used`` is 1 where that is the variant chosen, else 0, and nothing else of the step counts.
    ``useful`` and ``spent`` are the multiply-adds of a contraction, without and with those on
    padding. ``kernel`` is the number of the kernel that the step belongs to, in the plan. The tasks
    are those of ``rounds``, of which each begins when all tasks of the one before have ended.
    """

    function: str
    parameters: tuple[Expr, ...]
    buffers: tuple[int, ...]
    outputs: tuple[int, ...]
    grid: Expr
    scratch: Expr
    work: Expr
    label: str
    checks: tuple[str, ...] = ()
    variant: str = ""
    used: Expr = _ALWAYS
    useful: Expr = _NONE
    spent: Expr = _NONE
    kernel: int = 0
    rounds: Expr = _ALWAYS

    @property
    def sizes(self) -> tuple[Expr, ...]:
        """What is evaluated for a call, beside the parameters."""
        return self.grid, self.rounds, self.scratch, self.work, self.used

    def padded(self, dims: Mapping[str, int]) -> float | None:
        """The share of padding in the work of a contraction; None where it has no such work."""
        if not dims.keys() >= {*self.useful.free_symbols, *self.spent.free_symbols}:
            return None
        useful = self.useful.evaluate(dims)
        return self.spent.evaluate(dims) / useful - 1 if useful else None


@dataclass(frozen=True)
class OpaqueStep:
    """One operator run by the Python reference; ``payload`` is a serialised ONNX model.

    Or one whose bodies are compiled: its payload begins with ``CONTROL``, see ``control``, or with
    ``RAGGED``, see ``ragged``. Or one that the native extension computes itself: it begins with
    ``BUILT_IN``, see ``built_in``.
    Symbols that stand alone as a dimension of an output and are not bound yet are bound from the
    arrays that come back.
    """

    operator: str
    payload: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    label: str

    @property
    def has_bodies(self) -> bool:
        """Whether it calls compiled bodies, and not the reference."""
        return self.payload.startswith((CONTROL, RAGGED))

    @property
    def is_built_in(self) -> bool:
        """Whether the native extension computes it itself."""
        return self.payload.startswith(BUILT_IN)

    @property
    def needs_reference(self) -> bool:
        """Whether the reference runs it."""
        return not (self.has_bodies or self.is_built_in)


@dataclass(frozen=True)
class BindStep:
    """``symbols`` take the integer contents of ``buffer``, in row-major order."""

    buffer: int
    symbols: tuple[str, ...]
    guards: tuple[Guard, ...] = ()


Step = KernelStep | OpaqueStep | BindStep


@dataclass(frozen=True)
class Dimension:
    """The range of a dimension: low ≤ size ≤ high (None: no limit), a multiple of.

    ``origin`` says where the range is from: "given" by the user, implied by the "model", by a
    demand that ``reason`` states, or the "default".
    """

    name: str
    low: int = 0
    high: int | None = None
    multiple_of: int = 1
    origin: str = "given"
    reason: str = ""

    def row(self) -> list[Any]:
        """What is stored of it."""
        return [self.name, self.low, self.high, self.multiple_of, self.origin, self.reason]

    @staticmethod
    def of(row: Any) -> Dimension:
        """From what :meth:`row` gave; ``TypeError`` or ``ValueError`` where it is damaged."""
        name, low, high, multiple, origin, reason = row
        numbers = integer(low), optional_integer(high), integer(multiple)
        return Dimension(text(name), *numbers, text(origin), text(reason))


@dataclass(frozen=True)
class OperatorCount:
    """How often an operator type occurs in the model, and how often it runs as an opaque step."""

    operator: str
    count: int
    opaque: int = 0


@dataclass(frozen=True)
class Choice:
    """``symbol`` is the position of the least of ``costs``: the variant chosen for ``label``.

    Costs are modelled picoseconds, evaluated for every new shape; of equal ones the first wins.
    ``names`` says for people what each variant is.
    ``function`` is the one of the code image that finds the position, of ``arguments``.
    """

    symbol: str
    label: str
    names: tuple[str, ...]
    costs: tuple[Expr, ...]
    function: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """Everything a compiled model does, without its code and its constants.

    ``symbols`` lists all symbols, those that ``bindings`` find from the inputs' sizes first; the
    others are bound by ``BindStep`` and ``OpaqueStep``. ``bindings`` and ``guards`` are the sources
    and guards of a :class:`tilewright.shape.BindingPlan` over the inputs in order, and more guards
    if need be; each guard is checked as soon as its symbols are known. The symbols of ``choices``
    and ``threads_symbol`` (how many threads there are) are not among them. ``ragged`` is set where
    the inputs are packed sequences of their own lengths. ``fixed`` names inputs of the
    ONNX model that became constants.
    """

    name: str
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    symbols: tuple[str, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    bindings: tuple[SymbolSource, ...] = ()
    guards: tuple[Guard, ...] = ()
    dimensions: tuple[Dimension, ...] = ()
    operators: tuple[OperatorCount, ...] = ()
    choices: tuple[Choice, ...] = ()
    threads_symbol: str = ""
    ragged: RaggedBatch | None = None
    fixed: tuple[str, ...] = ()


@dataclass(frozen=True)
class CodeImage:
    """Position-independent machine code and what must be written into it where it is mapped.

    ``functions`` maps a name to its offset. A fix-up ``(offset, symbol, addend)`` is a 64-bit word
    that becomes the symbol's address plus the addend; the symbol "" is the base of the image.
    """

    level: str
    features: tuple[str, ...]
    data: bytes
    functions: Mapping[str, int]
    fixups: tuple[tuple[int, str, int], ...]
    code_size: int

    def to_json(self) -> dict[str, Any]:
        """All but ``data``, as plain values."""
        return {
            "level": self.level,
            "features": list(self.features),
            "functions": dict(sorted(self.functions.items())),
            "fixups": [list(fixup) for fixup in self.fixups],
            "code_size": self.code_size,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any], code: bytes) -> CodeImage:
        """The inverse of :meth:`to_json`; KeyError, TypeError or ValueError on malformed data."""
        return CodeImage(
            level=text(data["level"]),
            features=tuple(text(feature) for feature in data["features"]),
            data=code,
            functions={name: integer(offset) for name, offset in mapping(data["functions"])},
            fixups=tuple(
                (integer(offset), text(symbol), integer(addend))
                for offset, symbol, addend in data["fixups"]
            ),
            code_size=integer(data["code_size"]),
        )
