"""From a relocatable object file to a flat, position-independent code image.

A linker for the little that kernels need: 64-bit x86 ELF objects with code and read-only data, made
with the relocation model "pic". Sections are laid out one after the other, references between them
are resolved, functions of the C library are called through small stubs, so that the only absolute
addresses left are fix-ups. Imports ``runtime`` and ``support`` only. Start reading at :func:`link`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tilewright.runtime.program import CodeImage
from tilewright.support.errors import TilewrightError

_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")

_RELOCATABLE, _X86_64 = 1, 62
_PROGBITS, _SYMTAB, _RELA, _NOBITS = 1, 2, 4, 8
_WRITE, _ALLOCATED, _EXECUTABLE, _THREAD_LOCAL = 1, 2, 4, 0x400
_UNDEFINED, _ABSOLUTE, _RESERVED = 0, 0xFFF1, 0xFF00
_LOCAL, _FUNCTION = 0, 2

_R_NONE, _R_64, _R_PC32, _R_PLT32, _R_GOTPCREL, _R_PC64 = 0, 1, 2, 4, 9, 24
_R_GOTPCRELX, _R_REX_GOTPCRELX = 41, 42
_GOT_RELATIVE = (_R_GOTPCREL, _R_GOTPCRELX, _R_REX_GOTPCRELX)

_JUMP_THROUGH_NEXT_WORD = b"\xff\x25\x00\x00\x00\x00"  # jmp [rip + 0]
_STUB_ALIGNMENT, _PAGE = 16, 4096
# Sections that are allocated, but only for debuggers and unwinders.
_UNUSED = (".eh_frame", ".note", ".comment")


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


@dataclass(frozen=True)
class _Symbol:
    name: str
    kind: int
    binding: int
    section: int
    value: int


@dataclass(frozen=True)
class _Relocation:
    place: int  # in the image
    kind: int
    symbol: _Symbol
    addend: int


def link(data: bytes, level: str, features: tuple[str, ...]) -> CodeImage:
    """The image of one object file for a code level that needs CPU ``features``.

    Its functions are the global ones of the object. Raises TilewrightError for what is not an
    object file of this kind, for writable data and for relocations other than those of "pic" code.
    """
    try:
        return _Linker(data).image(level, features)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise _refused(f"it is malformed ({error})") from error


def _refused(why: str) -> TilewrightError:
    return TilewrightError(f"The object file cannot be linked: {why}.", where="code image")


class _Linker:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sections = self._read_sections()
        self.symbols = self._read_symbols()
        self.image_data = bytearray()
        self.places: dict[int, int] = {}  # section number -> offset in the image
        self.code_size = 0
        self.fixups: list[tuple[int, str, int]] = []
        self.stubs: dict[str, int] = {}
        self.slots: dict[tuple[str, int], int] = {}

    def image(self, level: str, features: tuple[str, ...]) -> CodeImage:
        self._lay_out()
        relocations = self._read_relocations()
        self._add_stubs(relocations)
        for relocation in relocations:
            self._resolve(relocation)
        functions = {
            symbol.name: self.places[symbol.section] + symbol.value
            for symbol in self.symbols
            if symbol.kind == _FUNCTION
            and symbol.binding != _LOCAL
            and symbol.section in self.places
        }
        return CodeImage(
            level=level,
            features=features,
            data=bytes(self.image_data),
            functions=dict(sorted(functions.items())),
            fixups=tuple(sorted(self.fixups)),
            code_size=self.code_size,
        )

    def _read_sections(self) -> list[_Section]:
        header = _FILE_HEADER.unpack_from(self.data)
        identity, kind, machine = header[:3]
        if identity[:6] != b"\x7fELF\x02\x01" or kind != _RELOCATABLE or machine != _X86_64:
            raise _refused("it is not a relocatable 64-bit x86 ELF object")
        table, count, names_section = header[6], header[12], header[13]
        raw: list[tuple[int, ...]] = [
            _SECTION_HEADER.unpack_from(self.data, table + number * _SECTION_HEADER.size)
            for number in range(count)
        ]
        names: int = raw[int(names_section)][4]
        return [
            _Section(self._text(names + name), sort, flags, offset, size, to, info, max(1, align))
            for name, sort, flags, _, offset, size, to, info, align, _ in raw
        ]

    def _text(self, offset: int) -> str:
        return self.data[offset : self.data.index(b"\0", offset)].decode("utf-8")

    def _read_symbols(self) -> list[_Symbol]:
        symbols: list[_Symbol] = []
        for section in self.sections:
            if section.kind != _SYMTAB:
                continue
            names = self.sections[section.link].offset
            for offset in range(section.offset, section.offset + section.size, _SYMBOL.size):
                name, info, _, home, value, _ = _SYMBOL.unpack_from(self.data, offset)
                text = self._text(names + name)
                if home >= _RESERVED and home != _ABSOLUTE:
                    raise _refused(f"'{text}' is common or in an unknown section")
                symbols.append(_Symbol(text, info & 15, info >> 4, home, value))
        return symbols

    def _lay_out(self) -> None:
        """Place code first, then data, each at its alignment."""
        wanted = [
            number
            for number, section in enumerate(self.sections)
            if section.flags & _ALLOCATED and section.size and not section.name.startswith(_UNUSED)
        ]
        for code in (True, False):
            for number in wanted:
                if bool(self.sections[number].flags & _EXECUTABLE) == code:
                    self._place(number)
            if code:
                self.code_size = len(self.image_data)

    def _place(self, number: int) -> None:
        section = self.sections[number]
        if section.kind not in (_PROGBITS, _NOBITS):
            return
        # The image is mapped read-only, so data that only relocations write to is fine.
        written = section.flags & _WRITE and not section.name.startswith(".data.rel.ro")
        if written or section.flags & _THREAD_LOCAL:
            raise _refused(f"section {section.name} is writable, but kernels keep no state")
        if section.alignment > _PAGE:
            raise _refused(f"section {section.name} has an alignment of {section.alignment}")
        self._align(section.alignment)
        self.places[number] = len(self.image_data)
        if section.kind == _NOBITS:
            self.image_data += bytes(section.size)
            return
        contents = self.data[section.offset : section.offset + section.size]
        if len(contents) != section.size:
            raise _refused("it is truncated")
        self.image_data += contents

    def _align(self, alignment: int) -> None:
        self.image_data += bytes(-len(self.image_data) % alignment)

    def _read_relocations(self) -> list[_Relocation]:
        relocations: list[_Relocation] = []
        for section in self.sections:
            if section.kind != _RELA or section.info not in self.places:
                continue
            base, room = self.places[section.info], self.sections[section.info].size
            for offset in range(section.offset, section.offset + section.size, _RELOCATION.size):
                place, info, addend = _RELOCATION.unpack_from(self.data, offset)
                kind, symbol = info & 0xFFFFFFFF, self.symbols[int(info >> 32)]
                if kind == _R_NONE:
                    continue
                if place + (8 if kind in (_R_64, _R_PC64) else 4) > room:
                    raise _refused("a relocation lies outside its section")
                relocations.append(_Relocation(base + place, kind, symbol, addend))
        return relocations

    def _add_stubs(self, relocations: list[_Relocation]) -> None:
        """Jumps to external functions, and words that hold addresses, behind code and data."""
        for relocation in relocations:
            symbol = relocation.symbol
            if relocation.kind in _GOT_RELATIVE:
                self._add_slot(symbol)
            elif relocation.kind in (_R_PC32, _R_PLT32) and symbol.section == _UNDEFINED:
                self._add_stub(symbol.name)

    def _add_slot(self, symbol: _Symbol) -> None:
        key = (symbol.name, -1) if symbol.section == _UNDEFINED else ("", self._address(symbol))
        if key in self.slots:
            return
        self._align(8)
        self.slots[key] = len(self.image_data)
        self.fixups.append((len(self.image_data), key[0], max(key[1], 0)))
        self.image_data += bytes(8)

    def _add_stub(self, name: str) -> None:
        if name in self.stubs:
            return
        self._align(_STUB_ALIGNMENT)
        self.stubs[name] = len(self.image_data)
        self.image_data += _JUMP_THROUGH_NEXT_WORD
        self.fixups.append((len(self.image_data), name, 0))
        self.image_data += bytes(8)

    def _address(self, symbol: _Symbol) -> int:
        """Where a symbol of the object is in the image."""
        if symbol.section not in self.places:
            raise _refused(f"'{symbol.name}' refers to a section that is left out")
        return self.places[symbol.section] + symbol.value

    def _resolve(self, relocation: _Relocation) -> None:
        symbol, addend, place = relocation.symbol, relocation.addend, relocation.place
        external = symbol.section == _UNDEFINED
        match relocation.kind:
            case kind if kind == _R_64:
                address = addend if external else self._address(symbol) + addend
                self.fixups.append((place, symbol.name if external else "", address))
            case kind if kind in _GOT_RELATIVE:
                key = (symbol.name, -1) if external else ("", self._address(symbol))
                self._write(place, "<i", self.slots[key] + addend - place)
            case kind if kind in (_R_PC32, _R_PLT32):
                target = self.stubs[symbol.name] if external else self._address(symbol)
                self._write(place, "<i", target + addend - place)
            case kind if kind == _R_PC64 and not external:
                self._write(place, "<q", self._address(symbol) + addend - place)
            case kind:
                raise _refused(f"relocation {kind} of '{symbol.name}' is not position-independent")

    def _write(self, place: int, layout: str, value: int) -> None:
        try:
            struct.pack_into(layout, self.image_data, place, value)
        except struct.error as error:
            raise _refused("the image is larger than 2 GiB") from error
