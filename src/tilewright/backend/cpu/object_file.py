"""Reading the little of an ELF object that kernels consist of: sections, symbols, relocations.

Raises ``struct.error``, ``IndexError`` or ``ValueError`` where a file is malformed, and what
:func:`refused` makes where it is another kind of file. Start with :class:`ObjectFile`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.support.errors import TilewrightError

PROGBITS, NOBITS = 1, 8
WRITE, THREAD_LOCAL = 1, 0x400
UNDEFINED = 0
PAGE = 4096

_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")

_RELOCATABLE, _X86_64 = 1, 62
_SYMTAB, _RELA = 2, 4
_ALLOCATED, _EXECUTABLE = 2, 4
_ABSOLUTE, _RESERVED = 0xFFF1, 0xFF00
_LOCAL, _FUNCTION = 0, 2
R_64, R_PC64, _R_NONE = 1, 24, 0

# Sections that are allocated, but only for debuggers and unwinders.
_UNUSED = (".eh_frame", ".note", ".comment")


@dataclass(frozen=True)
class Section:
    """One section; ``offset`` and ``size`` are those of its contents in the file."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int

    @property
    def is_code(self) -> bool:
        """Whether it is executed."""
        return bool(self.flags & _EXECUTABLE)

    @property
    def is_used(self) -> bool:
        """Whether code can reach its contents."""
        return bool(self.flags & _ALLOCATED and self.size) and not self.name.startswith(_UNUSED)


@dataclass(frozen=True)
class Symbol:
    """A name at ``value`` in ``section``, which is UNDEFINED if another object has it."""

    name: str
    kind: int
    binding: int
    section: int
    value: int

    @property
    def is_global(self) -> bool:
        """Whether other objects may refer to it by its name."""
        return self.binding != _LOCAL and self.section != UNDEFINED

    @property
    def is_function(self) -> bool:
        """Whether it can be called."""
        return self.kind == _FUNCTION


@dataclass(frozen=True)
class Relocation:
    """``place`` in ``section`` is to hold what ``kind`` makes of the symbol and the addend."""

    section: int
    place: int
    kind: int
    symbol: Symbol
    addend: int


def refused(why: str) -> TilewrightError:
    """The error for an object that cannot be linked."""
    return TilewrightError(f"The object file cannot be linked: {why}.", where="code image")


class ObjectFile:
    """A relocatable 64-bit x86 ELF object with its ``sections`` and ``symbols`` by number."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sections = self._read_sections()
        self.symbols = self._read_symbols()

    def contents(self, section: Section) -> bytes:
        """The bytes of a section that has some in the file."""
        found = self.data[section.offset : section.offset + section.size]
        if len(found) != section.size:
            raise refused("it is truncated")
        return found

    def relocations(self) -> Iterator[Relocation]:
        """What is to be done to the sections that are used."""
        for section in self.sections:
            if section.kind != _RELA or not self.sections[section.info].is_used:
                continue
            room = self.sections[section.info].size
            for offset in range(section.offset, section.offset + section.size, _RELOCATION.size):
                place, info, addend = _RELOCATION.unpack_from(self.data, offset)
                kind, symbol = info & 0xFFFFFFFF, self.symbols[int(info >> 32)]
                if kind == _R_NONE:
                    continue
                if place + (8 if kind in (R_64, R_PC64) else 4) > room:
                    raise refused("a relocation lies outside its section")
                yield Relocation(section.info, place, kind, symbol, addend)

    def _read_sections(self) -> list[Section]:
        header = _FILE_HEADER.unpack_from(self.data)
        identity, kind, machine = header[:3]
        if identity[:6] != b"\x7fELF\x02\x01" or kind != _RELOCATABLE or machine != _X86_64:
            raise refused("it is not a relocatable 64-bit x86 ELF object")
        table, count, names_section = header[6], header[12], header[13]
        raw: list[tuple[int, ...]] = [
            _SECTION_HEADER.unpack_from(self.data, table + number * _SECTION_HEADER.size)
            for number in range(count)
        ]
        names: int = raw[int(names_section)][4]
        return [
            Section(self._text(names + name), sort, flags, offset, size, to, info, max(1, align))
            for name, sort, flags, _, offset, size, to, info, align, _ in raw
        ]

    def _text(self, offset: int) -> str:
        return self.data[offset : self.data.index(b"\0", offset)].decode("utf-8")

    def _read_symbols(self) -> list[Symbol]:
        symbols: list[Symbol] = []
        for section in self.sections:
            if section.kind != _SYMTAB:
                continue
            names = self.sections[section.link].offset
            for offset in range(section.offset, section.offset + section.size, _SYMBOL.size):
                name, info, _, home, value, _ = _SYMBOL.unpack_from(self.data, offset)
                text = self._text(names + name)
                if home >= _RESERVED and home != _ABSOLUTE:
                    raise refused(f"'{text}' is common or in an unknown section")
                symbols.append(Symbol(text, info & 15, info >> 4, home, value))
        return symbols
