"""RLVMR's form of a turn: one tagged thought, then one action (arXiv 2507.22844; parsers of the released code).

    <planning>Step 1: open the fridge.</planning><action>open fridge 1</action>

Known to whoever plays in this form and to whoever rewards it. A turn of the wrong form is still played, with the action
that the parser found. `strict` is the parser of ALFWorld, `lenient` that of ScienceWorld.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

REASONING_TAGS = ("planning", "explore", "reflection", "monitor")

_CHINESE = re.compile("[\u4e00-\u9fff]")
_ACTION = re.compile(r"<action>(.*?)</action>", re.IGNORECASE | re.DOTALL)
_THOUGHT = re.compile(rf"<({'|'.join(REASONING_TAGS)})>(.*?)</\1>", re.IGNORECASE | re.DOTALL)
_ANY_TAG = re.compile(r"<.*?>", re.DOTALL)
_TAIL_CHARACTERS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedTurn:
    """What a completion says. `plan` is absent unless the turn plans in valid form."""

    action: str
    format_valid: bool
    plan: str | None = None


Parser = Callable[[str], TaggedTurn]


def strict(output: str) -> TaggedTurn:
    """Exactly one action pair, and before it exactly one pair of the four tags around a text that is not blank.

    Tags in any case, over several lines; no Chinese character. The action is "" unless there is exactly one.
    """
    actions, thoughts = list(_ACTION.finditer(output)), list(_THOUGHT.finditer(output))
    action = actions[0].group(1).strip() if len(actions) == 1 else ""
    format_valid = (
        len(actions) == 1
        and len(thoughts) == 1
        and bool(_ANY_TAG.sub("", thoughts[0].group(2)).strip())
        and thoughts[0].start() < actions[0].start()
        and _CHINESE.search(output) is None
    )
    plans = format_valid and thoughts[0].group(1).lower() == "planning"
    return TaggedTurn(action=action, format_valid=format_valid, plan=thoughts[0].group(2).strip() if plans else None)


def lenient(output: str) -> TaggedTurn:
    """First <action> to first </action>, case-sensitive, and any tag opened and closed anywhere; no Chinese character.

    Without an action the last 20 characters are played.
    """
    start, end = output.find("<action>"), output.find("</action>")
    has_action = start >= 0 and end >= 0
    action = output[start + len("<action>") : end].strip() if has_action else output[-_TAIL_CHARACTERS:].strip()
    has_thought = any(f"<{tag}>" in output and f"</{tag}>" in output for tag in REASONING_TAGS)
    return TaggedTurn(action=action, format_valid=has_action and has_thought and _CHINESE.search(output) is None)


PARSERS: Mapping[str, Parser] = {"strict": strict, "lenient": lenient}


def opening_tag(output: str) -> str:
    """The rewarded tag by the released rule: the first of planning, explore, reflection that is opened, else none.

    `monitor` is rewarded by no rule and counts as none.
    """
    return next((tag for tag in REASONING_TAGS[:3] if f"<{tag}>" in output), "none")
