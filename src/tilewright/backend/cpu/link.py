"""From relocatable object files to a flat, position-independent code image.

A linker for the little that kernels need: 64-bit x86 ELF objects with code and read-only data, made
with the relocation model "pic". Sections are laid out one after the other, references between them
are resolved, functions of the C library are called through small stubs, so that the only absolute
addresses left are fix-ups. Imports ``runtime`` and ``support`` only. Start reading at :func:`link`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.backend.cpu.object_file import (
    NOBITS,
    PAGE,
    PROGBITS,
    R_64,
    R_PC64,
    THREAD_LOCAL,
    UNDEFINED,
    WRITE,
    ObjectFile,
    Symbol,
    refused,
)
from tilewright.runtime.program import CodeImage

_R_PC32, _R_PLT32, _R_GOTPCREL = 2, 4, 9
_R_GOTPCRELX, _R_REX_GOTPCRELX = 41, 42
_GOT_RELATIVE = (_R_GOTPCREL, _R_GOTPCRELX, _R_REX_GOTPCRELX)

_JUMP_THROUGH_NEXT_WORD = b"\xff\x25\x00\x00\x00\x00"  # jmp [rip + 0]
_STUB_ALIGNMENT = 16


@dataclass(frozen=True)
class _Target:
    """What a relocation refers to: a place in the image, or the name of an external function."""

    name: str
    address: int | None


@dataclass(frozen=True)
class _Relocation:
    place: int  # in the image
    kind: int
    target: _Target
    addend: int


def link(
    objects: Sequence[bytes], level: str, features: tuple[str, ...], library: Sequence[bytes] = ()
) -> CodeImage:
    """The image of object files for a code level that needs CPU ``features``.

    Its functions are the global ones of ``objects``, which may call those of ``library`` too.
    Raises TilewrightError for what is not an object file of this kind, for writable data and for
    relocations other than those of "pic" code.
    """
    try:
        files = [ObjectFile(data) for data in (*objects, *library)]
        return _Linker(files).image(level, features, len(objects))
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise refused(f"it is malformed ({error})") from error


class _Linker:
    def __init__(self, objects: Sequence[ObjectFile]) -> None:
        self.objects = objects
        self.image_data = bytearray()
        self.places: dict[tuple[int, int], int] = {}  # object, section -> offset in the image
        self.code_size = 0
        self.fixups: list[tuple[int, str, int]] = []
        self.stubs: dict[str, int] = {}
        self.slots: dict[_Target, int] = {}
        self.defined: dict[str, int] = {}  # global symbol -> offset in the image

    def image(self, level: str, features: tuple[str, ...], count: int) -> CodeImage:
        """With the functions of the first ``count`` objects."""
        self._lay_out()
        self._define()
        relocations = self._read_relocations()
        self._add_stubs(relocations)
        for relocation in relocations:
            self._resolve(relocation)
        symbols = [symbol for file in self.objects[:count] for symbol in file.symbols]
        functions = [s.name for s in symbols if s.is_function and s.is_global]
        return CodeImage(
            level=level,
            features=features,
            data=bytes(self.image_data),
            functions={n: self.defined[n] for n in sorted(functions) if n in self.defined},
            fixups=tuple(sorted(self.fixups)),
            code_size=self.code_size,
        )

    def _lay_out(self) -> None:
        """Place code first, then data, each at its alignment."""
        for is_code in (True, False):
            for owner, file in enumerate(self.objects):
                for number, section in enumerate(file.sections):
                    if section.is_used and section.is_code == is_code:
                        self._place(owner, number)
            if is_code:
                self.code_size = len(self.image_data)

    def _place(self, owner: int, number: int) -> None:
        section = self.objects[owner].sections[number]
        if section.kind not in (PROGBITS, NOBITS):
            return
        # The image is mapped read-only, so data that only relocations write to is fine.
        written = section.flags & WRITE and not section.name.startswith(".data.rel.ro")
        if written or section.flags & THREAD_LOCAL:
            raise refused(f"section {section.name} is writable, but kernels keep no state")
        if section.alignment > PAGE:
            raise refused(f"section {section.name} has an alignment of {section.alignment}")
        self._align(section.alignment)
        self.places[owner, number] = len(self.image_data)
        is_empty = section.kind == NOBITS
        file = self.objects[owner]
        self.image_data += bytes(section.size) if is_empty else file.contents(section)

    def _align(self, alignment: int) -> None:
        self.image_data += bytes(-len(self.image_data) % alignment)

    def _define(self) -> None:
        """Note where the symbols are that other objects may refer to."""
        for owner, file in enumerate(self.objects):
            for symbol in file.symbols:
                if not symbol.is_global or (owner, symbol.section) not in self.places:
                    continue
                if symbol.name in self.defined:
                    raise refused(f"'{symbol.name}' is defined twice")
                self.defined[symbol.name] = self.places[owner, symbol.section] + symbol.value

    def _read_relocations(self) -> list[_Relocation]:
        found: list[_Relocation] = []
        for owner, file in enumerate(self.objects):
            for one in file.relocations():
                base = self.places.get((owner, one.section))
                if base is not None:
                    target = self._target(owner, one.symbol)
                    found.append(_Relocation(base + one.place, one.kind, target, one.addend))
        return found

    def _target(self, owner: int, symbol: Symbol) -> _Target:
        if symbol.section == UNDEFINED:
            address = self.defined.get(symbol.name)
            return _Target(symbol.name if address is None else "", address)
        if (owner, symbol.section) not in self.places:
            raise refused(f"'{symbol.name}' refers to a section that is left out")
        return _Target("", self.places[owner, symbol.section] + symbol.value)

    def _add_stubs(self, relocations: list[_Relocation]) -> None:
        """Jumps to external functions, and words that hold addresses, behind code and data."""
        for relocation in relocations:
            target = relocation.target
            if relocation.kind in _GOT_RELATIVE:
                self._add_slot(target)
            elif relocation.kind in (_R_PC32, _R_PLT32) and target.address is None:
                self._add_stub(target.name)

    def _add_slot(self, target: _Target) -> None:
        if target in self.slots:
            return
        self._align(8)
        self.slots[target] = len(self.image_data)
        self.fixups.append((len(self.image_data), target.name, target.address or 0))
        self.image_data += bytes(8)

    def _add_stub(self, name: str) -> None:
        if name in self.stubs:
            return
        self._align(_STUB_ALIGNMENT)
        self.stubs[name] = len(self.image_data)
        self.image_data += _JUMP_THROUGH_NEXT_WORD
        self.fixups.append((len(self.image_data), name, 0))
        self.image_data += bytes(8)

    def _resolve(self, relocation: _Relocation) -> None:
        target, addend, place = relocation.target, relocation.addend, relocation.place
        address = target.address
        match relocation.kind:
            case kind if kind == R_64:
                self.fixups.append((place, target.name, (address or 0) + addend))
            case kind if kind in _GOT_RELATIVE:
                self._write(place, "<i", self.slots[target] + addend - place)
            case kind if kind in (_R_PC32, _R_PLT32):
                found = self.stubs[target.name] if address is None else address
                self._write(place, "<i", found + addend - place)
            case kind if kind == R_PC64 and address is not None:
                self._write(place, "<q", address + addend - place)
            case kind:
                raise refused(f"relocation {kind} of '{target.name}' is not position-independent")

    def _write(self, place: int, layout: str, value: int) -> None:
        try:
            struct.pack_into(layout, self.image_data, place, value)
        except struct.error as error:
            raise refused("the image is larger than 2 GiB") from error
