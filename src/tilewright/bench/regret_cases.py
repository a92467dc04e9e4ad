# pyright: basic
"""What regret is measured on: programs and shapes, drawn at random, the same for the same seed.

Products and convolutions are drawn from nothing but ranges, attention also with random heads and
masks; the programs of ``memory`` are those of its table, with sizes that are not listed there. May
import compile and the rest of the package. Start with `draw_groups`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tilewright.backend.cpu.machine import host_level
from tilewright.bench.operators import AnyGroup, Group
from tilewright.bench.suites import AnyCase, Case, convolved
from tilewright.bench.tables import (
    TableCase,
    TableGroup,
    group_table_cases,
    make_table_case,
    read_table,
    resize_case,
)
from tilewright.support.errors import InputError
from tilewright.target import Target, detect, narrowed

PRODUCTS = ("gemm", "bmm", "conv")
KINDS = (*PRODUCTS, "attention", "memory")
CODE_LEVELS = ("avx512", "avx2")
# Of one shape, unless others are given, so that some hundred shapes take minutes.
LARGEST_BYTES = 1 << 30
LARGEST_FLOPS = 4e9

# Of an axis, and bytes of a shape, of the kinds that have other limits.
_RANGES = {"attention": (1, 2048), "memory": (1, 1 << 20)}
_BYTES = {"attention": 1 << 27, "memory": 1 << 26}
_CHANNELS, _PIXELS, _BATCH = 512, 64, 16  # of a convolution, at most
_TRIES = 1000  # draws of a shape until one is within the limits
_SPARE = 64  # what ranges of compilation have beyond the largest size drawn

# An attention: what rows there are, and what is done to their scores.
_HEADS = 32  # at most
_HEAD_SIZES = (8, 160)  # the least and the largest
_MOST = {"batch": 16, "steps": 16}  # of axes that have a range of their own
_SHAPES_OF_A_MODEL = 4  # which is compiled once for them
_ROWS: dict[str, tuple[str, str]] = {
    "self": ("length", "length"),
    "cross": ("length", "source"),
    "few rows": ("steps", "source"),
    "one row": ("1", "source"),
}
_MASKS: dict[str, tuple[str, ...]] = {
    "self": ("no mask", "mask of keys", "mask of pairs", "causal"),
    "cross": ("no mask", "mask of keys", "mask of pairs"),
    "few rows": ("no mask", "mask of keys", "causal"),
    "one row": ("no mask", "mask of keys"),
}


_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Setting:
    """What to draw and how to time it.

    ``seconds`` are for all shapes, ``sizes`` is the range of an axis and ``most_bytes`` what a
    shape moves at most, both the kind's own if they are not given. ``families`` are those of which
    programs are taken, all if it is empty. ``level`` is that of the code, if it is not this
    machine's own.
    """

    kind: str = "gemm"
    constant: str = "none"
    samples: int = 100
    sizes: tuple[int, int] | None = None
    threads: int = 1
    seed: int = 0
    seconds: float = 300.0
    largest_flops: float = LARGEST_FLOPS
    most_bytes: int | None = None
    families: tuple[str, ...] = ()
    level: str = ""

    @property
    def code_level(self) -> str:
        """The name of the level of the code."""
        return self.level or host_level().name

    @property
    def target(self) -> Target | None:
        """This machine as code with AVX2 sees it, where that is wanted; None: as it is."""
        return narrowed(detect()) if self.level == "avx2" else None

    @property
    def range(self) -> tuple[int, int]:
        """The range of an axis."""
        return self.sizes or _RANGES.get(self.kind, (1, 4096))

    @property
    def budget(self) -> int:
        """What a shape moves at most, in bytes."""
        return self.most_bytes or _BYTES.get(self.kind, LARGEST_BYTES)

    def allows(self, case: AnyCase) -> bool:
        """Whether a shape is within the limits."""
        return case.bytes <= self.budget and case.flops <= self.largest_flops


@dataclass(frozen=True)
class Drawn:
    """Programs with their shapes, and those of a table of which no kernel has several variants."""

    groups: tuple[AnyGroup, ...]
    alone: tuple[AnyCase, ...]


def draw_groups(setting: Setting, has_choice: Callable[[AnyGroup], bool]) -> Drawn:
    """Programs with ``setting.samples`` shapes together.

    ``has_choice`` says of a program of a table whether it has a kernel with several variants; the
    others get no shape.
    """
    if setting.level and setting.level not in CODE_LEVELS:
        hint = f"use {', '.join(CODE_LEVELS)}"
        raise InputError(f"There is no level {setting.level!r} to choose.", hint=hint)
    if setting.kind not in KINDS:
        raise InputError(f"There is no kind {setting.kind!r}.", hint=f"use {', '.join(KINDS)}")
    low, high = setting.range
    if not 1 <= low <= high:
        raise InputError(f"The range {low}..{high} is empty.", hint="write 1..4096, for example")
    if setting.kind == "attention":
        return _draw_attention(setting)
    if setting.kind == "memory":
        return _draw_table(setting, has_choice)
    if setting.families:
        raise InputError(f"Families of {setting.kind} cannot be chosen.", hint="leave --family out")
    return Drawn(groups_of(draw_cases(setting), setting.constant), ())


def _uniform(generator: np.random.Generator, low: int, high: int) -> int:
    """A number whose logarithm is uniform."""
    return round(float(np.exp(generator.uniform(np.log(min(low, high)), np.log(high)))))


def _too_few() -> InputError:
    return InputError("Hardly any shape of this range is small enough.", hint="lower the range")


# ---------------------------------------------------------------- products and convolutions


def draw_cases(setting: Setting) -> tuple[Case, ...]:
    """Products or convolutions; larger ones than allowed are drawn again."""
    low, high = setting.range
    generator = np.random.default_rng(setting.seed)

    def draw(most: int = high) -> int:
        return _uniform(generator, low, most)

    cases: list[Case] = []
    for _ in range(_TRIES * setting.samples):
        case = _draw(setting.kind, draw, generator, min(high, 64), len(cases))
        if case is None or not setting.allows(case):
            continue
        cases.append(case)
        if len(cases) == setting.samples:
            return tuple(cases)
    raise _too_few()


def _draw(
    kind: str,
    draw: Callable[..., int],
    generator: np.random.Generator,
    batch: int,
    number: int,
) -> Case | None:
    if kind != "conv":
        sizes = {"B": draw(batch)} if kind == "bmm" else {}
        sizes |= {"M": draw(), "N": draw(), "K": draw()}
        sizes |= {"trans_a": 0, "trans_b": int(generator.integers(2))}
        return Case("X·Yᵀ" if sizes["trans_b"] else "X·Y", str(number), kind, sizes)
    pixels, taps = draw(_PIXELS), int(generator.choice([1, 1, 3, 3, 5]))
    stride = int(generator.choice([1, 1, 2]))
    sizes = {"N": draw(_BATCH), "C": draw(_CHANNELS), "H": pixels, "W": pixels}
    sizes |= {"K": draw(_CHANNELS), "R": taps, "S": taps, "pad_h": taps // 2, "pad_w": taps // 2}
    sizes |= {"stride_h": stride, "stride_w": stride, "dilation": 1, "groups": 1}
    family = f"{taps}x{taps}" + (f", stride {stride}" if stride > 1 else "")
    return Case(family, str(number), kind, sizes) if min(convolved(sizes)) > 0 else None


def groups_of(cases: Sequence[Case], constant_operand: str) -> tuple[Group, ...]:
    """What is compiled once: all cases of run-time operands together, others one by one."""
    kind = cases[0].kind
    if kind == "conv":
        return tuple(_group((case,), ("N",), "right") for case in cases)
    if kind == "gemm" and constant_operand != "none":
        dynamic = {"right": "M", "left": "N"}[constant_operand]
        return tuple(_group((case,), (dynamic,), constant_operand) for case in cases)
    families: dict[int, list[Case]] = {}
    for case in cases:
        families.setdefault(case.sizes["trans_b"], []).append(case)
    axes = ("B", "M", "N", "K") if kind == "bmm" else ("M", "N", "K")
    return tuple(_group(own, axes, "none") for own in families.values())


def _group(cases: Sequence[Case], dynamic: Sequence[str], operand: str) -> Group:
    sizes = cases[0].sizes
    fixed = {name: size for name, size in sizes.items() if name not in dynamic}
    ranges = {name: (1, max(c.sizes[name] for c in cases) + _SPARE) for name in dynamic}
    return Group(cases[0].kind, operand, fixed, ranges, tuple(cases))


# ---------------------------------------------------------------- attention


def _draw_attention(setting: Setting) -> Drawn:
    """A model for every few shapes, of one family after the other."""
    generator = np.random.default_rng(setting.seed)
    pairs = [(rows, mask) for rows, masks in _MASKS.items() for mask in masks]
    pairs = _wanted(pairs, ", ".join, setting)
    groups: list[TableGroup] = []
    for start in range(0, setting.samples, _SHAPES_OF_A_MODEL):
        rows, mask = pairs[len(groups) % len(pairs)]
        heads = _uniform(generator, 1, _HEADS)
        size = _uniform(generator, *_HEAD_SIZES)
        if generator.integers(2):  # half of them as models have them
            size = max(16, size // 16 * 16)
        axes = [axis for axis in dict.fromkeys(("batch", *_ROWS[rows])) if axis != "1"]
        listed = " ".join(f"{axis}=1" for axis in axes)
        texts = attention_text(rows, mask, heads, size)
        name = f"{heads} heads of {size}"
        first = make_table_case("attention", f"{rows}, {mask}", name, *texts, listed)
        ranges = {axis: (1, _MOST.get(axis, setting.range[1])) for axis in axes}
        count = min(_SHAPES_OF_A_MODEL, setting.samples - start)
        groups.append(_table_group(first, count, ranges, setting, generator))
    return Drawn(tuple(groups), ())


def attention_text(rows: str, mask: str, heads: int, size: int) -> tuple[str, str, str]:
    """Inputs, constants and nodes of an attention, as in a table.

    The last of causal rows sees all keys, as in a step of a decoder that has seen some before.
    """
    queries, keys = _ROWS[rows]
    inputs = [f"float[batch,{heads},{queries},{size}] q"]
    inputs += [f"float[batch,{heads},{keys},{size}] {name}" for name in "kv"]
    constants = [f"float scale = {{{size**-0.5:.9g}}}"]
    nodes = ["t = Transpose <perm=[0,1,3,2]> (k) s = MatMul (q, t) z = Mul (s, scale)"]
    scores = "z"
    if mask == "causal":
        constants += ["int64 zero = {0}", "int64 one = {1}", "int64[1] last = {-1}"]
        constants += ["float low = {-3.4e38}"]
        nodes.append(
            "a = Shape <start=2, end=3> (q) b = Shape <start=2, end=3> (k) c = Squeeze (a) "
            "d = Squeeze (b) e = Sub (d, c) i = Range (zero, d, one) g = Range (e, d, one) "
            "j = Unsqueeze (g, last) o = LessOrEqual (i, j) m = Where (o, z, low)"
        )
        scores = "m"
    elif mask != "no mask":
        inputs.append(f"float[batch,1,{queries if mask == 'mask of pairs' else 1},{keys}] mask")
        nodes.append("m = Add (z, mask)")
        scores = "m"
    nodes.append(f"p = Softmax <axis=-1> ({scores}) y = MatMul (p, v)")
    return ", ".join(inputs), ", ".join(constants), " ".join(nodes)


# ---------------------------------------------------------------- programs of a table


def _draw_table(setting: Setting, has_choice: Callable[[AnyGroup], bool]) -> Drawn:
    """Programs with a choice share the shapes evenly; each draws by itself, whatever others do."""
    programs = group_table_cases(read_table(setting.kind))
    programs = _wanted(programs, lambda program: program.cases[0].suite, setting)
    chosen = [program for program in programs if has_choice(program)]
    alone = tuple(program for program in programs if program not in chosen)
    groups: list[TableGroup] = []
    for place, program in enumerate(chosen):
        form = program.form
        text = f"{form.inputs} {form.constants} {form.nodes}"
        generator = np.random.default_rng([setting.seed, zlib.crc32(text.encode())])
        count = setting.samples // len(chosen) + (place < setting.samples % len(chosen))
        if count:
            ranges = {
                axis: (least, setting.range[1]) for axis, (least, _) in program.ranges.items()
            }
            groups.append(_table_group(program.cases[0], count, ranges, setting, generator))
    return Drawn(tuple(groups), tuple(program.cases[0] for program in alone))


def _table_group(
    first: TableCase,
    count: int,
    ranges: Mapping[str, tuple[int, int]],
    setting: Setting,
    generator: np.random.Generator,
) -> TableGroup:
    """The program of ``first`` with so many other shapes of these ranges."""
    low, high = setting.range
    cases: list[TableCase] = []
    for _ in range(_TRIES * count):
        sizes = {
            axis: _uniform(generator, max(low, least), min(high, most))
            for axis, (least, most) in ranges.items()
        }
        # No row sees a key where fewer keys than rows end at the same place.
        if sizes.get("steps", 0) > sizes.get("source", high):
            continue
        case = resize_case(first, sizes)
        if case is None or not setting.allows(case):
            continue
        cases.append(case)
        if len(cases) == count:
            least = {axis: bounds[0] for axis, bounds in ranges.items()}
            most = {axis: max(case.sizes[axis] for case in cases) for axis in ranges}
            compiled = {axis: (least[axis], most[axis] + _SPARE) for axis in ranges}
            return TableGroup(first.form, compiled, tuple(cases))
    raise _too_few()


def _wanted(
    all_of: Sequence[_Item], family: Callable[[_Item], str], setting: Setting
) -> list[_Item]:
    """Those of the families that are asked for."""
    known = list(dict.fromkeys(map(family, all_of)))
    for name in setting.families:
        if name not in known:
            raise InputError(f"There is no family {name!r}.", hint=f"use {', '.join(known)}")
    return [item for item in all_of if not setting.families or family(item) in setting.families]
