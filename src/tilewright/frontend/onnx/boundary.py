"""Where errors of onnx, onnx-ir and numpy become errors for people.

Third-party readers fail in many ways on a damaged model; :func:`third_party` turns exactly those
kinds into one of our errors, with a place.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from google.protobuf.message import DecodeError, EncodeError
from onnx.checker import ValidationError
from onnx.shape_inference import InferenceError

from tilewright.ops.reference import FAILURES
from tilewright.support.errors import InvalidModelError, TilewrightError

# What rules and numpy raise on operands that do not fit each other. An AssertionError, TypeError or
# MemoryError of our own code is a defect, and never an operator without a rule.
UNFIT: tuple[type[Exception], ...] = (ValueError, LookupError, ArithmeticError)
# What readers of models raise on a damaged one.
THIRD_PARTY: tuple[type[Exception], ...] = (
    *FAILURES,
    MemoryError,
    DecodeError,
    EncodeError,
    ValidationError,
    InferenceError,
)
LONGEST = 240  # characters of a foreign message that are repeated


def summary(error: BaseException) -> str:
    """The first line of the innermost cause, cut to a readable length."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


@contextmanager
def third_party(
    message: str,
    *,
    where: str | None = None,
    hint: str | None = None,
    error: type[TilewrightError] = InvalidModelError,
) -> Generator[None]:
    """Run a block of third-party calls; their errors become ``error(message: cause)``."""
    try:
        yield
    except TilewrightError:
        raise
    except THIRD_PARTY as cause:
        raise error(f"{message}: {summary(cause)}", where=where, hint=hint) from cause
