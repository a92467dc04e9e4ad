"""Types of the part of llvmlite that tilewright uses; the package itself has none."""

from llvmlite import binding as binding
from llvmlite import ir as ir

__version__: str
