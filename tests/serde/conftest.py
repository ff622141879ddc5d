"""A world of its own for each test of Avro."""

from __future__ import annotations

import pytest
from avro_world import World


@pytest.fixture
def world() -> World:
    return World()
