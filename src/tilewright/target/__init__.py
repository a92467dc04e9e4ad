"""Package 3: what a machine can do: levels of memory, units, vectors, instruction tiles.

``description`` holds the plain data, ``presets`` published figures of known machines, ``detect``
looks at the processor that runs this, ``toml`` reads and writes descriptions. Nothing here is
measured, and nothing imports a compiler. May import ``support`` and ``shape``. Start with
``description``.
"""

from tilewright.target.description import InstructionTile, MemoryLevel, Target
from tilewright.target.detect import detect
from tilewright.target.presets import preset, preset_names
from tilewright.target.toml import dump, load_target

__all__ = [
    "InstructionTile",
    "MemoryLevel",
    "Target",
    "detect",
    "dump",
    "load_target",
    "preset",
    "preset_names",
]
