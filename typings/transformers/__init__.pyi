"""Everything of transformers, of which models are built by name: to read all of it takes long."""

from typing import Any

def __getattr__(name: str) -> Any: ...
