"""What a machine can do: levels of memory, units, vectors, instruction tiles.

``description`` holds the plain data, ``core_model`` what no data sheet says about a core,
``presets`` published figures of known machines, ``detect`` looks at the processor that runs this,
``toml`` reads and writes descriptions. Nothing here measures, and nothing imports a compiler. May
import ``support`` and ``shape``. Start with ``description``.
"""

from tilewright.target.core_model import CoreModel, TileTime
from tilewright.target.description import InstructionTile, MemoryLevel, Target
from tilewright.target.detect import detect, narrowed, with_clock
from tilewright.target.preset_cpus import barrier_ns
from tilewright.target.presets import preset, preset_names
from tilewright.target.toml import dump, load_target

__all__ = [
    "CoreModel",
    "InstructionTile",
    "MemoryLevel",
    "Target",
    "TileTime",
    "barrier_ns",
    "detect",
    "dump",
    "load_target",
    "narrowed",
    "preset",
    "preset_names",
    "with_clock",
]
