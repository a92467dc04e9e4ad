"""Code generators: from tile programs to machine code. Start with ``backend.cpu``."""
