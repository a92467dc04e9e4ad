"""Package 7: what is measured once on a machine, and where it is kept.

``wrappers`` makes code that calls register tiles in a loop, ``profile`` times it, ``store`` keeps
the result under the machine's fingerprint. ``loop_probes`` measures what loops without products
cost, with small tile programs that ``probes`` compiles and times. Nothing here runs in a user's
call, and nothing is written unless it is asked for. May import every lower package, numpy and
llvmlite. Start with ``profile``.
"""

from tilewright.tune.profile import (
    InterruptedTuning,
    Profile,
    TileTiming,
    measure_profile,
    standard_shapes,
)
from tilewright.tune.store import fingerprint, load_profile, save_profile

__all__ = [
    "InterruptedTuning",
    "Profile",
    "TileTiming",
    "fingerprint",
    "load_profile",
    "measure_profile",
    "save_profile",
    "standard_shapes",
]
