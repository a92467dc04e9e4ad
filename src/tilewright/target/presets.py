"""Machines with published figures, by name.

Every function says where its figures are from. Clocks are what the maker states for all units busy,
or close to it; rates per cycle do not depend on them. Bandwidths of memory are the channels' peak
for the whole machine and what one unit alone is known to reach. Imports ``support`` only. Start
with :func:`preset`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

from tilewright.support.errors import InputError
from tilewright.target.description import Target
from tilewright.target.preset_cpus import (
    haswell,
    icelake_server,
    neoverse_n1,
    neoverse_v1,
    sapphire_rapids,
    skylake_x,
    x86_64,
    zen3,
    zen4,
    zen5,
)
from tilewright.target.preset_gpus import a100, h100, k80, rtx3090, t4, v100

_PRESETS: dict[str, Callable[[], Target]] = {
    "x86-64": x86_64,
    "haswell": haswell,
    "skylake-x": skylake_x,
    "icelake-server": icelake_server,
    "sapphire-rapids": sapphire_rapids,
    "zen3": zen3,
    "zen4": zen4,
    "zen5": zen5,
    "neoverse-n1": neoverse_n1,
    "neoverse-v1": neoverse_v1,
    "k80": k80,
    "v100": v100,
    "t4": t4,
    "a100": a100,
    "rtx3090": rtx3090,
    "h100": h100,
}


def preset_names() -> tuple[str, ...]:
    """The names that :func:`preset` knows, CPUs first."""
    return tuple(_PRESETS)


def preset(name: str) -> Target:
    """The machine called ``name``. Raises InputError for an unknown name."""
    try:
        return _PRESETS[name]()
    except KeyError:
        close = difflib.get_close_matches(name, _PRESETS, 1)
        hint = f"Did you mean {close[0]}?" if close else f"Use one of {', '.join(_PRESETS)}"
        raise InputError(f"There is no target called '{name}'.", hint=hint) from None
