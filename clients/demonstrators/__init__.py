"""Text policies worth imitating, by the names that `longturn act --record --policy NAME` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clients.demonstrators.noisy_oracle import NoisyOracle
from clients.demonstrators.wall_follower import WallFollower
from clients.demonstrators.wanderer import Wanderer
from clients.policies.base import TextPolicy

DEMONSTRATORS: Mapping[str, Callable[..., TextPolicy]] = {
    "wall_follower": WallFollower,
    "wanderer": Wanderer,
    "noisy_oracle": NoisyOracle,
}
