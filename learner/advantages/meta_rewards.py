"""Meta rewards of RLVMR (arXiv 2507.22844): a turn is paid for the kind of reasoning it shows.

Three rule sets: `repaired` (default) is the released code with the parsed action and no reward for a reflection at turn
0; `released` keeps both faults; `appendix` follows the paper's algorithm 3.
"""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from longturn.reasoning_tags import opening_tag

PLANNING, EXPLORE, REFLECTION, NO_TAG = "planning", "explore", "reflection", "none"
_ONE_LINE_ACTION = re.compile(r"<action>(.*?)</action>")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaTurn:
    """One turn as the rules see it: the completion's text, its parsed action, and the state before and after."""

    output: str
    action: str
    format_valid: bool
    is_available: bool
    """The action was literally among the admissible ones."""
    state: Hashable
    next_state: Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaReward:
    tag: str
    reward: float


RuleSet = Callable[[Sequence[MetaTurn], float], tuple[MetaReward, ...]]


def reward_tag(turn: MetaTurn) -> str:
    """First of planning, explore, reflection whose opening string occurs; monitor and invalid turns are `none`."""
    return opening_tag(turn.output) if turn.format_valid else NO_TAG


def repaired(turns: Sequence[MetaTurn], episode_return: float) -> tuple[MetaReward, ...]:
    """Planning pays on success, a new action pays for exploring, another action after a failure for reflecting."""
    return _by_action_text(turns, episode_return, [turn.action for turn in turns], first_reflection=0.0)


def released(turns: Sequence[MetaTurn], episode_return: float) -> tuple[MetaReward, ...]:
    """The released code: an action on a line of its own reads as empty, a reflection at turn 0 pays."""
    found = [_ONE_LINE_ACTION.search(turn.output) for turn in turns]
    texts = [match.group(1).strip() if match else "" for match in found]
    return _by_action_text(turns, episode_return, texts, first_reflection=1.0)


def appendix(turns: Sequence[MetaTurn], episode_return: float, *, discount: float = 1.0) -> tuple[MetaReward, ...]:
    """Transitions instead of action texts; planning is discounted by the planning turns that follow it."""
    tags = [reward_tag(turn) if turn.is_available else NO_TAG for turn in turns]
    rewards: list[MetaReward] = []
    for index, (turn, tag) in enumerate(zip(turns, tags, strict=True)):
        reward = 0.0
        if tag == PLANNING and episode_return > 0:
            reward = discount ** tags[index + 1 :].count(PLANNING)
        elif tag == EXPLORE:
            reward = float(_transition(turn) not in map(_transition, turns[:index]))
        elif tag == REFLECTION and index:
            before = turns[index - 1]
            differs = (turn.state, turn.action) != (before.state, before.action)
            reward = float(not _succeeded(before) and differs)
        rewards.append(MetaReward(tag=tag, reward=reward))
    return tuple(rewards)


RULE_SETS: Mapping[str, RuleSet] = {"repaired": repaired, "released": released, "appendix": appendix}


def _by_action_text(
    turns: Sequence[MetaTurn], episode_return: float, texts: Sequence[str], *, first_reflection: float
) -> tuple[MetaReward, ...]:
    rewards: list[MetaReward] = []
    for index, turn in enumerate(turns):
        tag, reward = reward_tag(turn), 0.0
        if tag == PLANNING:
            reward = float(episode_return > 0)
        elif tag == EXPLORE:
            earlier = (text for text, past in zip(texts[:index], turns[:index], strict=True) if past.format_valid)
            reward = float(texts[index] not in earlier)
        elif tag == REFLECTION and index == 0:
            reward = first_reflection
        elif tag == REFLECTION:
            reward = float(not _succeeded(turns[index - 1]) and texts[index] != texts[index - 1])
        rewards.append(MetaReward(tag=tag, reward=reward))
    return tuple(rewards)


def _succeeded(turn: MetaTurn) -> bool:
    return turn.format_valid and turn.is_available


def _transition(turn: MetaTurn) -> tuple[Hashable, str, Hashable]:
    return turn.state, turn.action, turn.next_state
