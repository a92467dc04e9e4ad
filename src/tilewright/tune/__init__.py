"""What is measured once on a machine, and where it is kept.

``wrappers`` makes code that calls register tiles in a loop, ``profile`` times it, ``peak`` measures
what cores compute and read at best, ``streams`` how rows are followed and what is written,
``loop_probes`` what loops without products cost, with small tile programs that ``probes`` compiles
and times. ``kernel_times`` runs kernels of a model, for a
planner that asks. ``store`` keeps the results under the machine's fingerprint, and ``core`` makes a
machine of a profile. Nothing here runs in a user's call, and nothing is written unless it is asked
for. A profile is measured in several blocks of time, which say how sure each entry is (``blocks``).
May import every lower package, numpy and llvmlite. Start with
``profile``.
"""

from tilewright.tune.blocks import SURE
from tilewright.tune.core import measured_machine
from tilewright.tune.kernel_times import Budget, KernelTimes
from tilewright.tune.loop_probes import MeasuredLoops, measure_loop_costs
from tilewright.tune.peak import LevelReads, measure_reads
from tilewright.tune.profile import (
    InterruptedTuning,
    Profile,
    TileTiming,
    measure_profile,
    standard_shapes,
)
from tilewright.tune.store import fingerprint, load_profile, save_profile
from tilewright.tune.streams import MeasuredStreams, measure_streams

__all__ = [
    "SURE",
    "Budget",
    "InterruptedTuning",
    "KernelTimes",
    "LevelReads",
    "MeasuredLoops",
    "MeasuredStreams",
    "Profile",
    "TileTiming",
    "fingerprint",
    "load_profile",
    "measure_loop_costs",
    "measure_profile",
    "measure_reads",
    "measure_streams",
    "measured_machine",
    "save_profile",
    "standard_shapes",
]
