"""What calls do with an artifact is the same for all processors."""

from __future__ import annotations

from support.oldest_level import of_a_module

__all__ = ["of_a_module"]
