"""What several tests share: small models and graphs, ways to run and to compare them.

Importable as ``support`` (see ``pythonpath`` in pyproject.toml).
"""
