"""Numbers that are held as whole numbers of few bits, with a scale for each block of a row.

Weights are quantised so: (whole number - zero point) * scale. As floats they would take up to eight
times the memory, which is what a product with few rows spends its time on. Imports numpy. Read
:class:`Codes`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.contents import digest_of, same_contents

Array = np.ndarray[Any, Any]
WORD = 32  # bits of the words in which kernels read whole numbers
WIDTHS = (4, 8)  # bits that a whole number may have


@dataclass(frozen=True, eq=False)
class Codes:
    """A matrix of float32 numbers, ``(integers - zeros) * scales``, each row cut into blocks.

    ``integers`` [rows, depth] are bytes that are below ``1 << bits``. ``scales`` [rows, blocks] and
    ``zeros``, a byte for every block or one number for all, belong to ``block`` of them at a time;
    the last block of a row may be shorter. A word holds numbers of one block alone.
    """

    integers: Array
    scales: Array
    zeros: Array | int
    block: int
    bits: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and depth."""
        rows, depth = self.integers.shape
        return rows, depth

    @property
    def per_word(self) -> int:
        """How many whole numbers a word of 32 bits holds."""
        return WORD // self.bits

    @property
    def blocks(self) -> int:
        """How many blocks a row has."""
        return self.scales.shape[1]

    @property
    def form(self) -> tuple[int, int, int | None]:
        """All that code depends on besides sizes: bits, block, the zero point if it is one."""
        return self.bits, self.block, self.zeros if isinstance(self.zeros, int) else None

    def digest(self) -> bytes:
        """Sixteen bytes that are equal for equal contents, as of any constant."""
        parts = [digest_of(self.integers), digest_of(self.scales), repr(self.form).encode()]
        if not isinstance(self.zeros, int):
            parts.append(digest_of(self.zeros))
        return hashlib.blake2b(b"".join(parts), digest_size=16).digest()

    def same(self, other: Codes) -> bool:
        """Whether another one of the same shape and digest holds the same bits."""
        alike = self.form == other.form and same_contents(self.integers, other.integers)
        if isinstance(self.zeros, int) or isinstance(other.zeros, int):
            return alike and same_contents(self.scales, other.scales)
        zeros = same_contents(self.zeros, other.zeros)
        return alike and zeros and same_contents(self.scales, other.scales)

    def numbers(self) -> Array:
        """The numbers as float32."""
        depth = self.shape[1]
        zeros = np.asarray(self.zeros, np.float32)
        if zeros.ndim:
            zeros = self._spread(zeros, depth)
        return (self.integers.astype(np.float32) - zeros) * self._spread(self.scales, depth)

    def _spread(self, parameter: Array, depth: int) -> Array:
        return np.repeat(parameter, self.block, axis=1)[:, :depth]
