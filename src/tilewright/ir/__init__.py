"""The intermediate representations.

The primitive graph (``dtype``, ``scalar``, ``primitives``, ``graph``), its numpy meaning
(``evaluate``), integer contents as shape expressions (``symbolic``), checks, printing and export to
ONNX; and the tile program (``tile``). May import ``support``, ``shape`` and numpy. Start with
``primitives`` and ``graph``.
"""
