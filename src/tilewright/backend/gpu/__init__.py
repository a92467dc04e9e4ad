"""The GPU code generator: logical kernels as Triton source text.

``generate`` turns a planned kernel into source and the facts of its launch (``kernel``); one module
for each shape of loops (``elements``, ``rows``, ``products``, ``attention``) writes its text with
``writer``, ``tile``, ``indices`` and ``functions``. ``offline`` compiles text without a GPU. Triton
itself is imported by the functions that need it only. Start with ``generate.triton_kernels``.
"""
