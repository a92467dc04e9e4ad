"""Suites of contractions: the rows of a CSV file, or shapes from the command line, as cases.

The kind of a file follows from its columns: ``gemm`` has M, N and K, ``bmm`` also B, ``conv`` has
N, C, H, W, K, R and S. `Case` knows its shapes, its operations and its bytes; `sample` thins a
suite out. Imports support only. Start with `read_suite`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from tilewright.support.errors import InputError

ITEM_BYTES = 4  # everything is f32
LARGEST_BYTES = 2 << 30  # of operands and results of a case; those of more are left out

_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "conv": ("N", "C", "H", "W", "K", "R", "S"),
    "bmm": ("B", "M", "N", "K"),
    "gemm": ("M", "N", "K"),
}
_TRANSPOSES: Mapping[str, int] = {"trans_a": 0, "trans_b": 0}
_OPTIONAL: Mapping[str, Mapping[str, int]] = {
    "conv": {
        "pad_h": 0,
        "pad_w": 0,
        "stride_h": 1,
        "stride_w": 1,
        "dilation": 1,
        "groups": 1,
    },
    "bmm": _TRANSPOSES,
    "gemm": _TRANSPOSES,
}
_MAY_BE_ZERO = ("pad_h", "pad_w", "trans_a", "trans_b")


class AnyCase(Protocol):
    """What is timed: a contraction (`Case`), or a model of a table."""

    @property
    def suite(self) -> str:
        """What it is grouped by in a report."""
        ...

    @property
    def name(self) -> str:
        """Its name in the suite."""
        ...

    @property
    def kind(self) -> str:
        """What it computes: gemm, bmm, conv, or the table that it is from."""
        ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """By the name of the axis or option."""
        ...

    @property
    def flops(self) -> int:
        """Operations of its products; 0 for what is limited by memory."""
        ...

    @property
    def bytes(self) -> int:
        """That must be moved: operands and results."""
        ...

    def describe(self) -> str:
        """The sizes."""
        ...


_Case = TypeVar("_Case", bound=AnyCase)


@dataclass(frozen=True)
class Case:
    """One contraction: where it is from, its kind, and its sizes by the column's name."""

    suite: str
    name: str
    kind: str
    sizes: Mapping[str, int]

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Of both operands as they are multiplied, and of the result."""
        s = self.sizes
        if self.kind == "conv":
            filters = (s["K"], s["C"] // s["groups"], s["R"], s["S"])
            result = (s["N"], s["K"], *convolved(s))
            return (s["N"], s["C"], s["H"], s["W"]), filters, result
        batch = (s["B"],) if self.kind == "bmm" else ()
        left, right, result = (s["M"], s["K"]), (s["K"], s["N"]), (s["M"], s["N"])
        return (*batch, *left), (*batch, *right), (*batch, *result)

    @property
    def flops(self) -> int:
        """Operations of the plain algorithm, a multiplication and an addition being two."""
        left, right, result = self.shapes
        summed = math.prod(right[1:]) if self.kind == "conv" else left[-1]
        return 2 * math.prod(result) * summed

    @property
    def bytes(self) -> int:
        """Bytes of both operands and the result."""
        return ITEM_BYTES * sum(math.prod(shape) for shape in self.shapes)

    def describe(self) -> str:
        """The sizes, without options that have their plain value."""
        plain = _OPTIONAL[self.kind]
        return " ".join(f"{n}={size}" for n, size in self.sizes.items() if plain.get(n) != size)


def convolved(sizes: Mapping[str, int]) -> tuple[int, int]:
    """Height and width of a convolution's result."""
    height, width = (
        (sizes[extent] + 2 * sizes[pad] - sizes["dilation"] * (sizes[taps] - 1) - 1)
        // sizes[stride]
        + 1
        for extent, taps, pad, stride in (
            ("H", "R", "pad_h", "stride_h"),
            ("W", "S", "pad_w", "stride_w"),
        )
    )
    return height, width


def read_suite(path: Path) -> tuple[Case, ...]:
    """All rows of a CSV file, which may hold several suites. Raises InputError with the line."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            kind = _kind_of_columns(tuple(reader.fieldnames or ()), str(path))
            cases = tuple(_read_row(row, kind, path, reader.line_num) for row in reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"The suite cannot be read: {error}.",
            where=str(path),
            hint="give a CSV file in UTF-8 with a header line",
        ) from error
    if not cases:
        raise InputError(
            "The suite has no rows.",
            where=str(path),
            hint="Write a case into each line below the header",
        )
    return cases


def parse_shapes(text: str) -> tuple[Case, ...]:
    """Cases from ``"M=5,N=2304,K=768;B=12,M=64,N=64,K=64"``; the kind follows from the sizes.

    Raises InputError with the offending piece.
    """
    cases: list[Case] = []
    for piece in filter(None, (part.strip() for part in text.split(";"))):
        where = f"shape {piece!r}"
        pairs = [pair.partition("=") for pair in piece.split(",")]
        given = {name.strip(): value for name, _, value in pairs}
        if len(given) < len(pairs):
            raise InputError("A size is given twice.", where=where, hint="Give each size once")
        kind = _kind_of_columns(tuple(given), where)
        known = (*_REQUIRED[kind], *_OPTIONAL[kind])
        unknown = [name for name in given if name not in known]
        if unknown:
            raise InputError(
                f"A {kind} has no size {unknown[0]}.", where=where, hint=f"use {', '.join(known)}"
            )
        cases.append(Case(f"shapes_{kind}", piece, kind, _sizes(given, kind, where)))
    return tuple(cases)


def _kind_of_columns(columns: Sequence[str], where: str) -> str:
    for kind, required in _REQUIRED.items():
        if all(name in columns for name in required):
            return kind
    listing = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in _REQUIRED.items())
    raise InputError(
        f"The columns {', '.join(columns) or '(none)'} make no known kind of contraction.",
        where=where,
        hint=f"give at least the columns of one kind ({listing})",
    )


def _read_row(row: Mapping[str | None, object], kind: str, path: Path, line: int) -> Case:
    where = f"{path}, line {line}"
    texts = {name: value for name, value in row.items() if isinstance(value, str) and name}
    if None in row or len(texts) < len(row):
        raise InputError(
            "The row has not as many values as there are columns.",
            where=where,
            hint="put a text that holds commas in double quotes",
        )
    sizes = _sizes(texts, kind, where)
    return Case(texts.get("suite", path.stem), texts.get("case", str(line)), kind, sizes)


def _sizes(texts: Mapping[str, str], kind: str, where: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name in (*_REQUIRED[kind], *_OPTIONAL[kind]):
        text = texts.get(name, "").strip()
        if not text and name in _OPTIONAL[kind]:
            sizes[name] = _OPTIONAL[kind][name]
        elif text.isdecimal() and (int(text) > 0 or name in _MAY_BE_ZERO):
            sizes[name] = int(text)
        else:
            least = 0 if name in _MAY_BE_ZERO else 1
            raise InputError(
                f"{name} is {text or 'empty'!r}, which is not a size.",
                where=where,
                hint=f"write a whole number of at least {least}",
            )
    problem = _conflict(sizes, kind)
    if problem is not None:
        raise InputError(f"The sizes do not fit: {problem}.", where=where, hint="correct the row")
    return sizes


def _conflict(sizes: Mapping[str, int], kind: str) -> str | None:
    if kind != "conv":
        wrong = [name for name in _TRANSPOSES if sizes[name] > 1]
        return f"{wrong[0]} is neither 0 nor 1" if wrong else None
    if sizes["C"] % sizes["groups"] or sizes["K"] % sizes["groups"]:
        return f"{sizes['groups']} groups do not divide C={sizes['C']} and K={sizes['K']}"
    if min(convolved(sizes)) < 1:
        return "the filter is larger than the padded image"
    return None


def choose_suites(cases: Sequence[_Case], only: Sequence[str]) -> tuple[_Case, ...]:
    """The cases of the suites named. Raises InputError for a name that no case has."""
    known = tuple(dict.fromkeys(case.suite for case in cases))
    for name in only:
        if name not in known:
            raise InputError(f"There is no suite {name!r}.", hint=f"choose from {', '.join(known)}")
    return tuple(case for case in cases if case.suite in only)


def sample(cases: Sequence[_Case], count: int) -> tuple[_Case, ...]:
    """``count`` cases of each suite, evenly spread over its cases sorted by what they take."""
    chosen: set[int] = set()
    for suite in dict.fromkeys(case.suite for case in cases):
        own = [index for index, case in enumerate(cases) if case.suite == suite]
        own.sort(key=_by_work(cases))
        chosen.update(own[place] for place in spread(len(own), count))
    return tuple(case for index, case in enumerate(cases) if index in chosen)


def spread(length: int, count: int) -> list[int]:
    """``count`` places, evenly spread over ``length``, both ends included; the middle for one."""
    if count >= length:
        return list(range(length))
    if count == 1:
        return [length // 2]
    return [round(index * (length - 1) / (count - 1)) for index in range(count)]


def _by_work(cases: Sequence[AnyCase]) -> Callable[[int], tuple[int, int]]:
    return lambda index: (cases[index].flops, cases[index].bytes)
