"""The price list of this machine's cores: the usual one of such cores, with what was measured.

Imports target. Start with :func:`measured_core`.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.target import CoreModel, Target, TileTime
from tilewright.target.core_model import usual_core
from tilewright.tune.profile import Profile


def measured_core(profile: Profile, target: Target) -> CoreModel:
    """The cores of ``target`` as ``profile`` found them; entries it lacks are the usual ones."""
    plain = (tile for tile in profile.tiles if not tile.masked and not tile.gathered)
    times = tuple(TileTime(tile.height, tile.columns, tile.step_ns) for tile in plain)
    core = usual_core(target.vector_bytes)
    return replace(core, tiles=times, measured=("tiles",) if times else ())
