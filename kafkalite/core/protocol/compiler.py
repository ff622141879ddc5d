"""The compiler: from a message's fields to Python source that reads and writes one version.  [P]

Owns   the two writers of source, `Reader` for decoders and `Writer` for encoders.
Never  runs while messages flow: `codec` calls it once per class and version.

What it makes is plain straight-line code, one function per message, nested loops for nested
arrays. Neighbouring values of a fixed size, and the length or the first byte of a varint that
follows them, become a single `struct` call. For Heartbeat v0:

    def decode(data, room):                      def encode(value, parts):
        limit = len(data); position = 0              add = parts.append; apart = []
        n, = unpack_h(data, position)                text = value.group_id.encode()
        position += 2                                add(pack_h(len(text)))
        if n < 0: refuse_null('group_id')            add(text)
        ...                                          ...

Reading needs no comparison per field: `position` only ever grows, and a slice past the end is
short, so whoever ran past the end is found by the next `struct` call or by the one comparison in
`codec.decode`. An array's count is compared with what is left before anything is allocated for it,
and taken from the `room` that the whole message has for entries.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from kafkalite.core.protocol import primitives
from kafkalite.core.protocol.fields import (
    ERROR_CODE,
    FOREVER,
    Array,
    Element,
    Field,
    Struct,
    fields_of,
    size_min,
    tagged_and_not,
)
from kafkalite.core.protocol.primitives import RECORDS, STRING, UUID, Fixed, Sized

LARGE_RECORDS_BYTES: Final = 16_384  # from here on, not copying is worth a part of its own

RUNTIME: Final = {
    name: getattr(primitives, name)
    for name in (
        "ERROR_CODES",
        "REPLACE",
        "STRING_BYTES_MAX",
        "UVARINTS",
        "is_in_memory",
        "read_uvarint",
        "records_size",
        "refuse_count",
        "refuse_entries",
        "refuse_string",
        "refuse_null",
        "refuse_tag",
        "skip_tagged_fields",
        "to_uuid",
        "write_string_size",
        "write_uvarint",
    )
} | {"unpack_from": struct.unpack_from, "pack": struct.pack}


class Source:
    """Lines of Python under construction, and the names that they use."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.names: dict[str, Any] = dict(RUNTIME)
        self.lines: list[str] = []
        self.depth = 1
        self.pending: list[tuple[str, str]] = []  # (expression or variable, struct letter)
        self._used: dict[str, int] = {}

    def line(self, text: str) -> None:
        """One line, at the depth of the current block."""
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indents the lines within below `head`."""
        self.line(head)
        self.depth += 1
        yield
        self.depth -= 1

    def variable(self, name: str) -> str:
        """A name that no other variable has."""
        count = self._used[name] = self._used.get(name, 0) + 1
        return f"{name}_{count}"

    def constant(self, name: str, value: object) -> str:
        """A name for an object that the code refers to."""
        if self.names.setdefault(name, value) is not value:
            name = self.variable(name)
            self.names[name] = value
        return name

    def default(self, field: Field) -> str:
        """The expression of a field's default."""
        if field.default is None or type(field.default) in (int, str, bool, bytes):
            return repr(field.default)
        return self.constant(f"default_{field.name}", field.default)

    def format(self) -> tuple[str, str]:
        """The pending letters, as a suffix for a name and as a format."""
        letters = "".join(letter for _, letter in self.pending)
        return letters.replace("?", "bool"), ">" + letters

    def compile(self, head: str, name: str) -> Callable[..., Any]:
        """The function, made of all lines below `head`."""
        file = f"<{name} v{self.version} {head}>"
        source = "\n".join([head, *self.lines, ""])
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)  # tracebacks
        exec(compile(source, file, "exec"), self.names)  # our own source
        function: Callable[..., Any] = self.names[head[4 : head.index("(")]]
        return function


class Reader(Source):
    """Writes the source of a decoder. Each `read…` returns the expression of the value."""

    def fixed(self, name: str, letter: str) -> str:
        """A value of a fixed size, to be read with its neighbours."""
        self.pending.append((self.variable(name), letter))
        return self.pending[-1][0]

    def flush(self) -> None:
        """Reads all pending fields in one call."""
        if not self.pending:
            return
        if len(self.pending) == 1 and self.pending[0][1] == "B":
            self.line(f"{self.pending[0][0]} = data[position]")
            self.line("position += 1")
        else:
            suffix, letters = self.format()
            codec = struct.Struct(letters)
            unpack = f"unpack_{suffix}"
            self.names.setdefault(unpack, codec.unpack_from)
            targets = ", ".join(variable for variable, _ in self.pending)
            self.line(f"{targets}, = {unpack}(data, position)")
            self.line(f"position += {codec.size}")
        self.pending.clear()

    def length(self, element: Sized | Array, name: str, where: str, nullable: bool) -> str:
        """A length or count; where `nullable`, any below 0 is null."""
        if self.flexible:
            n = self.fixed(name, "B")
            self.flush()
            with self.block(f"if {n} > 127:"):
                with self.block("if data[position] < 128:"):  # two bytes, the usual long one
                    self.line(f"{n} += data[position] * 128 - 128")
                    self.line("position += 1")
                with self.block("else:"):
                    self.line(f"{n}, position = read_uvarint(data, position - 1)")
                if element is STRING:
                    with self.block(f"if {n} > STRING_BYTES_MAX + 1:"):
                        self.line(f"refuse_string({where!r}, {n} - 1)")
            self.line(f"{n} -= 1")
        else:
            n = self.fixed(name, element.letter if isinstance(element, Sized) else "i")
            self.flush()
        if not nullable:
            with self.block(f"if {n} < 0:"):
                self.line(f"refuse_null({where!r})")
        return n

    def read(self, field: Field, where: str) -> str:
        """A field that is not tagged."""
        nullable = field.is_nullable(self.version)
        match field.element:
            case Fixed():
                return self.read_fixed(field.element, field.name)
            case Sized():
                return self.read_sized(field.element, field.name, where, nullable)
            case Array(element):
                return self.read_array(element, field.name, where, nullable)
            case Struct(cls) if nullable:
                return self.read_nullable_struct(cls, field.name, where)
            case Struct(cls):
                return self.read_struct(cls, where)

    def read_fixed(self, element: Fixed, name: str) -> str:
        """The expression holds once the pending values are read."""
        variable = self.fixed(name, element.letter)
        if element is ERROR_CODE:
            return f"ERROR_CODES[{variable}]"
        return f"to_uuid({variable})" if element is UUID else variable

    def read_sized(self, element: Sized, name: str, where: str, nullable: bool) -> str:
        """A string, bytes, or a view of records."""
        n = self.length(element, f"{name}_size", where, nullable)
        value = self.variable(name)
        if nullable:
            self.line(f"{value} = None")
        with self.block(f"if {n} >= 0:") if nullable else _no_block():
            self.line(f"end = position + {n}")
            match element.kind:
                case "string":
                    self.line(f"{value} = str(data[position:end], 'utf-8', REPLACE)")
                case "bytes":
                    self.line(f"{value} = bytes(data[position:end])")
                case "records":
                    self.line(f"{value} = data[position:end]")
            self.line("position = end")
        return value

    def read_array(self, element: Element, name: str, where: str, nullable: bool) -> str:
        """A tuple. Fixed elements are read in one call, others in a loop."""
        n = self.length(Array(element), f"{name}_count", where, nullable)
        value = self.variable(name)
        if nullable:
            self.line(f"{value} = None")
        with self.block(f"if {n} >= 0:") if nullable else _no_block():
            smallest = size_min(element, self.version, self.flexible)
            with self.block(f"if {n} * {smallest} > limit - position:"):
                self.line(f"refuse_count({where!r}, {n}, limit - position)")
            self.count_entries(n, where)
            if isinstance(element, Fixed) and element is not UUID and element is not ERROR_CODE:
                self.line(f"{value} = unpack_from(f'>{{{n}}}{element.letter}', data, position)")
                self.line(f"position += {n} * {smallest}")
            else:
                self.read_elements(element, name, where, n, value)
        return value

    def count_entries(self, n: str, where: str) -> None:
        """Takes `n` entries from the room that the message has left for them."""
        self.line(f"room -= {n}")
        with self.block("if room < 0:"):
            self.line(f"refuse_entries({where!r}, {n})")

    def read_elements(self, element: Element, name: str, where: str, n: str, value: str) -> None:
        """The loop over an array's elements."""
        items = self.variable(f"{name}_items")
        self.line(f"{items} = []")
        with self.block(f"for _ in range({n}):"):
            one = Field(name, element, 0, FOREVER, FOREVER, None, None)
            read = self.read(one, where)
            self.flush()
            self.line(f"{items}.append({read})")
        self.line(f"{value} = tuple({items})")

    def read_nullable_struct(self, cls: type, name: str, where: str) -> str:
        """A struct behind a byte: -1 is null, 1 is a struct."""
        present = self.fixed(f"{name}_present", "b")
        self.flush()
        value = self.variable(name)
        self.line(f"{value} = None")
        with self.block(f"if {present} >= 0:"):
            read = self.read_struct(cls, where)
            self.flush()
            self.line(f"{value} = {read}")
        return value

    def read_struct(self, cls: type, where: str) -> str:
        """The call that makes the struct; its fields that this version lacks keep defaults."""
        tagged, fields = tagged_and_not(cls, self.version)
        values = {field.name: self.read(field, f"{where}.{field.name}") for field in fields}
        if self.flexible:
            values |= self.read_tagged(tagged, where)
        make = self.constant(cls.__name__, cls)
        absent = (f for f in fields_of(cls) if f.name not in values)
        values |= {field.name: self.default(field) for field in absent}
        return f"{make}({', '.join(values[field.name] for field in fields_of(cls))})"

    def read_tagged(self, tagged: list[Field], where: str) -> dict[str, str]:
        """The tagged fields at a struct's end: those we know are read, the others skipped."""
        count = self.fixed("tags", "B")
        self.flush()
        if not tagged:
            with self.block(f"if {count}:"):
                self.line("position, room = skip_tagged_fields(data, position - 1, room)")
            return {}
        values = {field.name: self.variable(field.name) for field in tagged}
        for field in tagged:
            self.line(f"{values[field.name]} = {self.default(field)}")
        tag, size, end = self.variable("tag"), self.variable("size"), self.variable("tag_end")
        with self.block(f"if {count}:"):
            self.line(f"{count}, position = read_uvarint(data, position - 1)")
            self.count_entries(count, where)
            with self.block(f"for _ in range({count}):"):
                self.line(f"{tag}, position = read_uvarint(data, position)")
                self.line(f"{size}, position = read_uvarint(data, position)")
                self.line(f"{end} = position + {size}")
                for keyword, field in zip(["if"] + ["elif"] * len(tagged), tagged, strict=False):
                    with self.block(f"{keyword} {tag} == {field.tag}:"):
                        read = self.read(field, f"{where}.{field.name}")
                        self.flush()
                        self.line(f"{values[field.name]} = {read}")
                        with self.block(f"if position != {end}:"):
                            self.line(f"refuse_tag({where + '.' + field.name!r}, {size})")
                with self.block("else:"):
                    self.line(f"position = {end}")
        return values


def compile_decoder(
    cls: type, version: int, flexible: bool
) -> Callable[[memoryview, int], tuple[Any, int]]:
    """A function from a memoryview, and the room for entries of arrays and tagged fields, to the
    message that the memoryview begins with, and where the message ends.

    The end may lie behind the memoryview's: then the message was cut off.
    """
    reader = Reader(version, flexible)
    reader.line("limit = len(data)")
    reader.line("position = 0")
    read = reader.read_struct(cls, cls.__name__)
    reader.flush()
    reader.line(f"return {read}, position")
    return reader.compile("def decode(data, room):", cls.__name__)


class Writer(Source):
    """Writes the source of an encoder. Each `write…` takes the expression of what to write."""

    def fixed(self, expression: str, letter: str) -> None:
        """A value of a fixed size, to be written with its neighbours."""
        self.pending.append((expression, letter))

    def flush(self) -> None:
        """Writes all pending fields in one call."""
        if not self.pending:
            return
        suffix, letters = self.format()
        arguments = [expression for expression, letter in self.pending if letter != "x"]
        if arguments:
            self.names.setdefault(f"pack_{suffix}", struct.Struct(letters).pack)
            self.line(f"add(pack_{suffix}({', '.join(arguments)}))")
        else:
            self.line(f"add({bytes(len(self.pending))!r})")
        self.pending.clear()

    def length(self, n: str, element: Sized | Array) -> None:
        """A length or count, held in the variable `n`; -1 stands for null."""
        if not self.flexible:
            self.fixed(n, element.letter if isinstance(element, Sized) else "i")
            return
        self.flush()
        write_long = "write_string_size" if element is STRING else "write_uvarint"
        self.line(f"add(UVARINTS[{n} + 1] if {n} < 1023 else {write_long}({n} + 1))")

    def write(self, field: Field, expression: str) -> None:
        """A field that is not tagged."""
        nullable = field.is_nullable(self.version)
        match field.element:
            case Fixed():
                self.write_fixed(field.element, expression)
            case Sized():
                self.write_sized(field.element, field.name, expression, nullable)
            case Array(element):
                self.write_array(element, field.name, expression, nullable)
            case Struct(cls) if nullable:
                self.write_nullable_struct(cls, field.name, expression)
            case Struct(cls):
                self.write_struct(cls, field.name, expression)

    def write_fixed(self, element: Fixed, expression: str) -> None:
        """A number, a truth value, an error code or a UUID."""
        self.fixed(f"{expression}.bytes" if element is UUID else expression, element.letter)

    def write_sized(self, element: Sized, name: str, expression: str, nullable: bool) -> None:
        """A string, bytes or records, behind their length."""
        value, n = self.variable(name), self.variable(f"{name}_size")
        self.line(f"{value} = {expression}")
        if nullable:
            self.line(f"{n} = -1")
        with self.block(f"if {value} is not None:") if nullable else _no_block():
            if element is STRING:
                self.line(f"{value} = {value}.encode()")
            self.line(f"{n} = {'records_size' if element is RECORDS else 'len'}({value})")
        self.length(n, element)
        self.flush()
        with self.block(f"if {n} > 0:") if nullable else _no_block():
            if element is RECORDS:
                self.line(f"if {n} >= {LARGE_RECORDS_BYTES} or not is_in_memory({value}):")
                self.line("    apart.append(len(parts))")
            self.line(f"add({value})")

    def write_array(self, element: Element, name: str, expression: str, nullable: bool) -> None:
        """A count and the elements: fixed ones in one call, others in a loop."""
        value, n = self.variable(name), self.variable(f"{name}_count")
        self.line(f"{value} = {expression}")
        self.line(
            f"{n} = -1 if {value} is None else len({value})" if nullable else f"{n} = len({value})"
        )
        self.length(n, Array(element))
        self.flush()
        with self.block(f"if {n} > 0:"):
            if isinstance(element, Fixed) and element is not UUID:
                self.line(f"add(pack(f'>{{{n}}}{element.letter}', *{value}))")
                return
            one = self.variable(f"{name}_item")
            with self.block(f"for {one} in {value}:"):
                self.write(Field(name, element, 0, FOREVER, FOREVER, None, None), one)
                self.flush()

    def write_nullable_struct(self, cls: type, name: str, expression: str) -> None:
        """A struct behind a byte: -1 is null, 1 is a struct."""
        value = self.variable(name)
        self.line(f"{value} = {expression}")
        self.fixed(f"-1 if {value} is None else 1", "b")
        self.flush()
        with self.block(f"if {value} is not None:"):
            self.write_struct(cls, name, value)
            self.flush()

    def write_struct(self, cls: type, name: str, value: str) -> None:
        """The struct's fields, then its tagged ones."""
        if not value.isidentifier():
            self.line(f"{(variable := self.variable(name))} = {value}")
            value = variable
        tagged, fields = tagged_and_not(cls, self.version)
        for field in fields:
            self.write(field, f"{value}.{field.name}")
        if self.flexible:
            if tagged:
                self.write_tagged(tagged, value)
            else:
                self.fixed("0", "x")

    def write_tagged(self, tagged: list[Field], value: str) -> None:
        """How many tagged fields differ from their defaults, and each of them behind its size."""
        self.flush()
        count = self.variable("tags")
        given = [self.variable(field.name) for field in tagged]
        for field, differs in zip(tagged, given, strict=True):
            there, default = f"{value}.{field.name}", self.constant("default", field.default)
            self.line(f"{differs} = {there} is not {default} and {there} != {default}")
        self.line(f"{count} = {' + '.join(given)}")
        self.line(f"add(UVARINTS[{count}])")
        with self.block(f"if {count}:"):
            for field, differs in zip(tagged, given, strict=True):
                with self.block(f"if {differs}:"):
                    self.write_one_tagged(field, f"{value}.{field.name}")

    def write_one_tagged(self, field: Field, expression: str) -> None:
        """A tagged field: it is written aside first, since its size comes before it."""
        outer = self.variable("outer")
        self.line(f"{outer} = add")
        self.line(f"{outer}_parts = []")
        self.line(f"add = {outer}_parts.append")
        self.write(field, expression)
        self.flush()
        self.line(f"add = {outer}")
        self.line(f"{outer}_bytes = b''.join({outer}_parts)")
        self.line(f"add(write_uvarint({field.tag}))")
        self.line(f"add(write_uvarint(len({outer}_bytes)))")
        self.line(f"add({outer}_bytes)")


def compile_encoder(cls: type, version: int, flexible: bool) -> Callable[..., list[int]]:
    """A function that appends a message's bytes to `parts`.

    It returns the places in `parts` of records that are large or not in memory.
    """
    writer = Writer(version, flexible)
    writer.line("add = parts.append")
    writer.line("apart = []")
    writer.write_struct(cls, "value", "value")
    writer.flush()
    writer.line("return apart")
    return writer.compile("def encode(value, parts):", cls.__name__)


@contextmanager
def _no_block() -> Iterator[None]:
    """A block without an indent: code stays in place."""
    yield
