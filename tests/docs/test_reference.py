"""The reference describes every public name."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import kafkalite.clients
import kafkalite.clients.sync
import kafkalite.errors
import kafkalite.serde
import kafkalite.streams
import kafkalite.testing.pytest
import kafkalite.testing.topics

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
ENTRY = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def described() -> dict[str, object]:
    """The objects that the reference describes, by their dotted names."""
    names = [name for page in REFERENCE.glob("*.md") for name in ENTRY.findall(page.read_text())]
    assert len(names) == len(set(names)), "a name twice"
    return {name: resolved(name) for name in names}


def resolved(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except AttributeError:
        return import_module(name)


def test_every_public_name_is_described() -> None:
    known = described()
    known_objects = set(map(id, known.values()))
    modules = (kafkalite, kafkalite.streams, kafkalite.clients, kafkalite.serde)
    missing = [
        f"{module.__name__}.{name}"
        for module in modules
        for name in module.__all__
        if id(getattr(module, name)) not in known_objects
    ]
    errors = vars(kafkalite.errors).values()
    missing += [
        error.__name__
        for error in errors
        if isinstance(error, type)
        and issubclass(error, kafkalite.errors.KafkaliteError)
        and id(error) not in known_objects
    ]
    assert not missing
    assert kafkalite.testing.pytest in known.values()
    assert kafkalite.testing.topics.TestTopic in known.values()


def test_every_described_object_has_a_docstring() -> None:
    bare = [name for name, thing in described().items() if not (thing.__doc__ or "").strip()]
    assert not bare


def test_the_blocking_clients_are_twins_of_described_ones() -> None:
    assert set(kafkalite.clients.sync.__all__) <= set(kafkalite.clients.__all__)
