"""docs/protocol.md, written from the routes and the definitions of messages.              [D]

    python -m kafkalite.core.handlers.protocol_page > docs/protocol.md      (make protocol-page)

Owns   the page's form. What it says is said elsewhere: in ROUTES, in `protocol`, in docstrings.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final

from kafkalite.core.handlers import ROUTES
from kafkalite.core.handlers.routes import Route
from kafkalite.core.protocol.apis import API, Api
from kafkalite.core.protocol.fields import (
    ERROR_CODE,
    FOREVER,
    Array,
    Element,
    Field,
    Struct,
    fields_of,
)
from kafkalite.core.protocol.primitives import UUID, Fixed

HEAD: Final = """\
# The protocol that the broker speaks

Generated from the handlers and the message definitions (`make protocol-page`); a test keeps it
current. ApiVersions tells clients the same. A request in any other API or version closes the
connection, save ApiVersions in an unknown one: it is answered in v0 with UNSUPPORTED_VERSION.
"""
LEGEND: Final = """\
## Messages

One line a field: its name, its type, `null` where it may be null, and the versions that have it
where not all do. `[X]` is an array; what is indented belongs to the struct above it. From the
flexible version on lengths are varints and every struct ends with tagged fields (KIP-482).
"""
NAMES: Final = {
    "b": "Int8", "h": "Int16", "i": "Int32", "q": "Int64", "H": "UInt16", "d": "Float64",
    "?": "Bool", "16s": "Uuid",
}  # fmt: skip


def render() -> str:
    """The page."""
    return "\n".join([HEAD, *_table(), "", LEGEND, *_messages()]).rstrip() + "\n"


def _table() -> Iterator[str]:
    yield "| key | API | versions | flexible from | what the broker does |"
    yield "|--:|:--|:--|:--|:--|"
    for key in sorted(ROUTES):
        route, api = ROUTES[key], API[ROUTES[key].key]
        link = f"[{api.name}](#{api.name.lower()})"
        flexible = "–" if api.flexible_since > api.versions[1] else f"v{api.flexible_since}"
        yield f"| {int(key)} | {link} | {_range(*route.versions)} | {flexible} | {_says(route)} |"
    unserved = [api.name for key, api in sorted(API.items()) if key not in ROUTES]
    if unserved:
        yield f"\nDefined, but not served: {', '.join(unserved)}."


def _says(route: Route) -> str:
    """The first paragraph of what the handler says of itself."""
    return " ".join((inspect.getdoc(route.handler) or "").split("\n\n")[0].split())


def _range(first: int, last: int) -> str:
    return f"v{first}" if first == last else f"v{first}–v{last}"


def _messages() -> Iterator[str]:
    for key in sorted(ROUTES):
        api = API[ROUTES[key].key]
        yield f"### {api.name}\n"
        yield "```"
        yield from _message(api, api.request)
        yield ""
        yield from _message(api, api.response)
        yield "```\n"


def _message(api: Api, cls: type) -> Iterator[str]:
    yield cls.__name__
    yield from _fields(cls, api.versions, "  ")


def _fields(cls: type, versions: tuple[int, int], indent: str) -> Iterator[str]:
    for field in fields_of(cls):
        notes = [_name(field.element), *_notes(field, versions)]
        yield f"{indent}{field.name}: {' '.join(notes)}"
        element = field.element
        while isinstance(element, Array):
            element = element.element
        if isinstance(element, Struct):
            yield from _fields(element.cls, versions, indent + "  ")


def _name(element: Element) -> str:
    match element:
        case Array(inner):
            return f"[{_name(inner)}]"
        case Struct(cls):
            return cls.__name__
        case Fixed(letter):
            if element is ERROR_CODE:
                return "ErrorCode"
            return "Uuid" if element is UUID else NAMES[letter]
        case _:
            return element.kind.capitalize()


def _notes(field: Field, versions: tuple[int, int]) -> Iterator[str]:
    first, last = versions
    if field.nullable_since <= first:
        yield "null"
    elif field.nullable_since != FOREVER:
        yield f"null v{field.nullable_since}+"
    if field.tag is not None:
        yield f"tag {field.tag}"
    if field.since > first and field.until < last:
        yield f"({_range(field.since, field.until)})"
    elif field.since > first:
        yield f"(v{field.since}+)"
    elif field.until < last:
        yield f"({_range(first, field.until)})"


if __name__ == "__main__":
    print(render(), end="")
