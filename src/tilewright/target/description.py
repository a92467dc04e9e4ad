"""A machine as cost models and candidate generators see it: plain, frozen, hashable data.

A *unit* is what runs independently: a core of a CPU, a streaming multiprocessor of a GPU. All
throughputs are for one unit and one cycle of ``clock_ghz``; a multiply-add counts once. Imports
``support`` only. Start with :class:`Target`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from tilewright.support.errors import InputError

ELEMENT_BYTES = {
    "float64": 8,
    "float32": 4,
    "tfloat32": 4,  # float32 in memory, rounded to 10 bits of mantissa by the instruction
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "int32": 4,
}
KINDS = ("cpu", "gpu")
# Vector registers that products cannot count on, by instruction set: where a multiply-add is two
# instructions, or none of its operands can be in memory, values on their way take some.
TEMPORARIES = {"x86-64": 4, "neon": 4}
KEPT_SHARE = 0.75  # of a cache, for what is met again: what streams by takes the rest


@dataclass(frozen=True)
class MemoryLevel:
    """One level of memory, from the registers outward.

    ``capacity`` bytes of one instance (0: as good as unbounded); ``instances`` of them on the
    machine, each shared by ``sharing`` units. ``bandwidth`` is what one unit alone reads, bytes per
    cycle; ``total_bandwidth`` what all units that share one instance read together. ``latency`` in
    cycles from the request to the value. ``link`` is what all units behind one instance read
    together of the level behind it, bytes per cycle, and twice what they write; 0 where nothing
    but that level limits them.
    """

    name: str
    capacity: int
    instances: int
    sharing: int
    bandwidth: float
    total_bandwidth: float
    latency: float
    link: float = 0.0

    def bandwidth_of(self, units: int) -> float:
        """Bytes per cycle that ``units`` working together read, spread over the instances."""
        return min(units * self.bandwidth, min(units, self.instances) * self.total_bandwidth)

    @property
    def room(self) -> int:
        """Bytes of what is met again that stay there."""
        return int(self.capacity * KEPT_SHARE)


@dataclass(frozen=True)
class InstructionTile:
    """The m × n × k product of one instruction; on a GPU, of ``warps`` warps together.

    ``dtype`` of the operands, ``accumulator`` of the sums, ``per_cycle`` multiply-adds of one unit.
    ``latency`` in cycles and the number of ``registers`` where they are not those of the vector
    pipes (0: they are).
    """

    name: str
    dtype: str
    accumulator: str
    m: int
    n: int
    k: int
    per_cycle: float
    warps: int = 1
    latency: float = 0.0
    registers: int = 0


@dataclass(frozen=True)
class Target:
    """One machine.

    ``isa`` names the instruction set: "x86-64", "avx2", "avx512", "neon", "sm_80". ``vector_bytes``
    and ``vector_registers`` describe the vector register file as the instruction set names it (a
    GPU: bytes of one register of a warp, and registers that one thread may use).
    ``fma_pipes`` vector multiply-adds start in a cycle, each ``fma_latency`` cycles long (where
    there is no fused one: the addition). ``loads_per_cycle`` and ``stores_per_cycle`` count
    vectors. ``multiply_adds`` lists (dtype, multiply-adds per cycle) of the vector pipes;
    ``instruction_tiles`` the matrix instructions with their own rates. ``levels`` go from the
    registers to memory. ``sync_ns`` is one barrier of all units, ``launch_ns`` what it costs to
    start them. The block limits are those of a GPU (1 and 1 elsewhere). ``core_bytes`` is the width
    of the core's own vectors where code has narrower ones, ``core_pipes`` how many multiply-adds of
    them start in a cycle (else 0): with these goes what kind of core it is.
    """

    name: str
    kind: str
    isa: str
    units: int
    clock_ghz: float
    vector_bytes: int
    vector_registers: int
    fma_pipes: float
    fma_latency: float
    loads_per_cycle: float
    stores_per_cycle: float
    multiply_adds: tuple[tuple[str, float], ...]
    instruction_tiles: tuple[InstructionTile, ...]
    levels: tuple[MemoryLevel, ...]
    sync_ns: float
    launch_ns: float
    block_threads: int = 1
    block_shared_bytes: int = 0
    core_bytes: int = 0
    core_pipes: float = 0.0

    @property
    def free_registers(self) -> int:
        """Vector registers for the sums and the operands of a product."""
        return max(1, self.vector_registers - TEMPORARIES.get(self.isa, 0))

    def level(self, name: str) -> MemoryLevel:
        """The level of memory called ``name``. Raises InputError."""
        for level in self.levels:
            if level.name == name:
                return level
        names = ", ".join(level.name for level in self.levels)
        raise InputError(
            f"The target {self.name} has no level '{name}'.", hint=f"Use one of {names}"
        )

    def lanes(self, dtype: str) -> int:
        """Elements of ``dtype`` in one vector register."""
        return self.vector_bytes // element_bytes(dtype)

    def multiply_adds_per_cycle(self, dtype: str) -> float:
        """What one unit's vector pipes do in a cycle; 0 where they cannot work on ``dtype``."""
        return dict(self.multiply_adds).get(dtype, 0.0)

    def peak_flops(self, dtype: str, units: int | None = None) -> float:
        """Operations per second of ``units`` (all): the fastest instruction, two per step."""
        rates = [tile.per_cycle for tile in self.instruction_tiles if tile.dtype == dtype]
        rate = max([self.multiply_adds_per_cycle(dtype), *rates])
        return 2.0 * rate * self.clock_ghz * 1e9 * (self.units if units is None else units)

    def written_bandwidth(self, units: int) -> float:
        """Bytes per cycle that ``units`` working together write to memory."""
        last, memory = self.levels[-2:]
        links = min(units, last.instances) * last.link / 2
        together = memory.bandwidth_of(units)
        return min(together, links) if last.link else together

    def bytes_per_second(self, level: str, units: int = 1) -> float:
        """What ``units`` read from a level of memory in a second."""
        return self.level(level).bandwidth_of(units) * self.clock_ghz * 1e9

    def instructions(self, dtype: str) -> tuple[InstructionTile, ...]:
        """Every instruction that multiplies and adds ``dtype``: the plain vector one first."""
        rate = self.multiply_adds_per_cycle(dtype)
        tiles = tuple(tile for tile in self.instruction_tiles if tile.dtype == dtype)
        return (self._plain(dtype, rate), *tiles) if rate else tiles

    def _plain(self, dtype: str, rate: float) -> InstructionTile:
        sums = "int32" if dtype == "int8" else dtype
        if self.kind == "gpu":  # the 32 threads of a warp as 4 rows of 8
            return InstructionTile("fma", dtype, sums, 4, 8, 1, rate)
        return InstructionTile("vector", dtype, sums, 1, self.lanes(sums), 1, rate)


def element_bytes(dtype: str) -> int:
    """Bytes of one element. Raises InputError for a type that no target multiplies."""
    try:
        return ELEMENT_BYTES[dtype]
    except KeyError:
        hint = f"Use one of {', '.join(ELEMENT_BYTES)}"
        raise InputError(f"No target multiplies elements of type '{dtype}'.", hint=hint) from None


def check(target: Target, where: str) -> Target:
    """The same target, or an InputError that names the first field that makes no sense."""
    problem = _scalars(target) or _levels(target) or _products(target)
    if problem is not None:
        key, message, allowed = problem
        raise InputError(message, where=f"{where}, key {key}", hint=f"Give {allowed}")
    return target


_Problem = tuple[str, str, str]


def _scalars(target: Target) -> _Problem | None:
    if target.kind not in KINDS:
        return "kind", f"The kind '{target.kind}' is unknown.", f"one of {', '.join(KINDS)}"
    for key in ("name", "isa"):
        if not getattr(target, key):
            return key, f"The {key} is empty.", "any text"
    for key in ("units", "vector_bytes", "vector_registers", "block_threads"):
        if getattr(target, key) < 1:
            return key, f"'{key}' is {getattr(target, key)}", "an integer of at least 1"
    for key in ("clock_ghz", "fma_pipes", "fma_latency", "loads_per_cycle", "stores_per_cycle"):
        if not getattr(target, key) > 0:
            return key, f"'{key}' is {getattr(target, key)}", "a number above 0"
    for key in ("sync_ns", "launch_ns", "block_shared_bytes", "core_bytes", "core_pipes"):
        if not getattr(target, key) >= 0:
            return key, f"'{key}' is {getattr(target, key)}", "a number of at least 0"
    if target.vector_bytes & (target.vector_bytes - 1) or target.vector_bytes < 8:
        return "vector_bytes", f"{target.vector_bytes} is no vector width.", "8, 16, 32, 64, 128, …"
    return None


def _levels(target: Target) -> _Problem | None:
    if len(target.levels) < 3:
        found = len(target.levels)
        return "levels", f"There are {found} levels.", "at least registers, one cache and memory"
    names = [level.name for level in target.levels]
    if len(set(names)) != len(names):
        return "levels", "Two levels have the same name.", "a name for each level"
    if names[0] != "registers":
        return "levels", f"The first level is '{names[0]}'.", "registers first, then outward"
    for level in target.levels:
        for field in fields(level):
            value = getattr(level, field.name)
            low = 0 if field.name in ("capacity", "latency", "link") else 1e-9
            if field.name != "name" and not value >= low:
                key = f"levels.{level.name}.{field.name}"
                return key, f"'{field.name}' is {value}", "a number above 0"
        if level.capacity == 0 and level is not target.levels[-1]:
            key = f"levels.{level.name}.capacity"
            return key, "Only the last level may be unbounded.", "its bytes"
    return None


def _products(target: Target) -> _Problem | None:
    if not target.multiply_adds:
        return "multiply_adds", "No element type can be multiplied.", "float32 = 16, …"
    known = ", ".join(ELEMENT_BYTES)
    for dtype, rate in target.multiply_adds:
        if dtype not in ELEMENT_BYTES:
            return f"multiply_adds.{dtype}", f"The type '{dtype}' is unknown.", f"one of {known}"
        if not rate > 0:
            return f"multiply_adds.{dtype}", f"The rate is {rate}.", "a number above 0"
    for tile in target.instruction_tiles:
        key = f"instruction_tiles.{tile.name}"
        if tile.dtype not in ELEMENT_BYTES:
            return f"{key}.dtype", f"The type '{tile.dtype}' is unknown.", f"one of {known}"
        if tile.accumulator not in ELEMENT_BYTES:
            return f"{key}.accumulator", f"'{tile.accumulator}' is unknown.", f"one of {known}"
        if min(tile.m, tile.n, tile.k, tile.warps) < 1 or not tile.per_cycle > 0:
            return key, "An extent or the rate is not positive.", "numbers above 0"
        if not tile.latency >= 0 or tile.registers < 0:
            return key, "The latency or the registers are negative.", "numbers of at least 0"
    return None
