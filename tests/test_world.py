"""The world that the laws are played in repeats itself by its seed."""

from __future__ import annotations

import pytest
from msgspec import json

from tests.sim.world import World
from tests.world_kit import message, stop

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("content", ["say=3 both=2 run=5,children=2", "open=3 say=1", "leave=9 write=1 stubborn"])
def test_the_same_seed_gives_the_same_log_and_another_seed_another_order(content: str) -> None:
    def play(seed: int) -> bytes:
        with World(seed) as world:
            world.ask("s", message("m1", content))
            world.ask("s", message("m2", "say=1", policy="enqueue"))
            world.wait(1.5)
            world.ask("s", message("m3", content))
            world.wait(1.5)
            world.ask("s", stop())
            world.settle()
            return json.encode(world.events())

    assert play(7) == play(7)
    assert len({play(seed) for seed in range(6)}) > 1
