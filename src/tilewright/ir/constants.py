"""Tensors that are known when compiling: the primitive :class:`Constant`.

All other primitives are in ``primitives``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ir.codes import Codes
from tilewright.ir.contents import digest_of, kept, same_contents
from tilewright.ir.dtype import DType
from tilewright.ir.tensor_type import TensorType
from tilewright.shape import constant


@dataclass(frozen=True)
class Constant:
    """A tensor known when compiling; equal contents are one constant.

    It holds an array, or whole numbers of few bits that stand for one.
    """

    digest: bytes
    dtype: DType
    shape: tuple[int, ...]
    held: np.ndarray[Any, Any] | Codes = field(compare=False, repr=False)

    @staticmethod
    def of(array: np.ndarray[Any, Any], dtype: DType | None = None) -> Constant:
        """The constant with the contents of ``array``."""
        held = kept(array)
        kind = DType.of(held.dtype) if dtype is None else dtype
        return Constant(digest_of(held), kind, held.shape, held)

    @staticmethod
    def of_codes(codes: Codes) -> Constant:
        """The constant of the numbers that ``codes`` stand for."""
        return Constant(codes.digest(), DType.FLOAT32, codes.shape, codes)

    @property
    def codes(self) -> Codes | None:
        """How the contents are held, if as whole numbers of few bits."""
        return self.held if isinstance(self.held, Codes) else None

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The contents; of codes they are computed each time."""
        return self.held.numbers() if isinstance(self.held, Codes) else self.held

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Constant):
            return self is other
        mine, others = (
            (self.digest, self.dtype, self.shape),
            (other.digest, other.dtype, other.shape),
        )
        if mine != others or (self.codes is None) != (other.codes is None):
            return False
        if self.codes is not None and other.codes is not None:
            return self.codes.same(other.codes)
        return same_contents(self.array, other.array)

    def result(self) -> TensorType:
        return TensorType(self.dtype, tuple(constant(size) for size in self.shape))
