"""PyTorch modules: exported to ONNX with dynamic axes, and compared with what was compiled.

``torch.export`` and ``torch.onnx`` do the export; ``frontend/onnx`` reads what they make. Start
with :class:`ExportedModule`.
"""

from tilewright.frontend.torch.export import DynamicAxes, ExportedModule

__all__ = ["DynamicAxes", "ExportedModule"]
