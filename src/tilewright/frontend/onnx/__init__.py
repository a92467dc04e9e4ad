"""ONNX models to primitive graphs.

:func:`import_model` is the entry; it gives the graph and an :class:`ImportReport`. ``source`` reads
and checks files, ``dims`` names the dimensions, ``importer`` walks the nodes, ``opaque`` makes what
has no rule run on the ONNX reference evaluator. May import ``support``, ``shape``, ``ir``, ``ops``,
onnx, onnx-ir.
"""

from tilewright.frontend.onnx.dims import DEFAULT_HIGH, Dim, DimLike, as_dims
from tilewright.frontend.onnx.importer import (
    Imported,
    StructuralInputs,
    import_body,
    import_model,
)
from tilewright.frontend.onnx.interface import as_constants
from tilewright.frontend.onnx.report import BakedSize, DimensionReport, Fallback, ImportReport

__all__ = [
    "DEFAULT_HIGH",
    "BakedSize",
    "Dim",
    "DimLike",
    "DimensionReport",
    "Fallback",
    "ImportReport",
    "Imported",
    "StructuralInputs",
    "as_constants",
    "as_dims",
    "import_body",
    "import_model",
]
