"""What a compiled model needs to run; loads without the compiler.

Start reading at ``program`` (what the compiler hands over), then ``model`` (calling it) and
``artifact`` (the file). Imports ``shape``, ``support``, numpy and the native extension ``_native``.
"""
