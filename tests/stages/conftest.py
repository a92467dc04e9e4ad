"""Stages are the same for all processors, but for their tiles."""

from __future__ import annotations

from support.oldest_level import of_a_module

__all__ = ["of_a_module"]
