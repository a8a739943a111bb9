"""An environment of Gymnasium that speaks: say the number of the turn."""

from typing import Any

import gymnasium
from gymnasium.spaces import Text

COUNTING = "tests.env_server.environments.gymnasium_samples:longturn/Counting-v0"
_LAST = 3


class Counting(gymnasium.Env[str, str]):
    """Won by saying 1, 2, 3."""

    observation_space = Text(100)
    action_space = Text(min_length=0, max_length=10)

    def __init__(self) -> None:
        self._said = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._said = 0
        return f"Count to {_LAST}. Seed {seed}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        is_right = action.strip() == str(self._said + 1)
        self._said += is_right
        is_over = self._said == _LAST
        return "Yes." if is_right else "No.", is_right / _LAST, is_over, False, {"is_success": is_over}


gymnasium.register("longturn/Counting-v0", entry_point=Counting, max_episode_steps=20)
