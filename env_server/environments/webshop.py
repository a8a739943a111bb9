"""WebShop: find and buy a product that fits a wish, on pages of text.

The shop is a generated one, or that of WebShop's own files where the environment variable `LONGTURN_WEBSHOP_DATA` of
the server's process names their folder. No request can name a file.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import ClassVar

from env_server.environment import (
    Determinism,
    EnvironmentSpec,
    KnobSpec,
    KnobValue,
    TaskInfo,
    Transition,
    switch,
)
from env_server.environments.bm25 import RANKING_VERSION
from env_server.environments.bracketed import bracketed
from env_server.environments.digests import state_hash
from env_server.environments.episodes import Episode, EpisodicEnvironment
from env_server.environments.task_table import SPLITS, TaskTable
from env_server.environments.webshop_catalogue import GENERATED_HASH, Catalogue, Wishes, open_shop
from env_server.environments.webshop_generator import GENERATOR_VERSION
from env_server.environments.webshop_goods import Goal
from env_server.environments.webshop_oracle import ShopOracle
from env_server.environments.webshop_pages import TEXT_FORMS, Page, View, clickable, clicked, parts_of, render, searched
from env_server.environments.webshop_reward import RewardParts, reward_parts

DATA_VARIABLE = "LONGTURN_WEBSHOP_DATA"
MAX_ACTION_CHARS = 1000

_INVALID = "Invalid action: use search[keywords], or click[...] with what this page offers."

KNOBS = (
    KnobSpec(
        name="reward",
        kind="choice",
        default="dense",
        choices=("dense", "binary"),
        description="what a purchase earns: WebShop's reward, or 1 where that is 1 and else 0",
    ),
    KnobSpec(
        name="observation",
        kind="choice",
        default="text",
        choices=TEXT_FORMS,
        description="WebShop's text forms of a page",
    ),
    switch("admissible_actions", "list the admissible actions"),
)
_SPEC = EnvironmentSpec(
    name="webshop",
    version=f"{GENERATOR_VERSION}.{RANKING_VERSION}",
    data_hash=GENERATED_HASH,
    action_format="search[keywords], or click[label] with the label of a product, option or button on the page, such "
    "as click[back to search], click[next >], click[features], click[buy now].",
    max_turns=15,
    knobs=KNOBS,
    determinism=Determinism.EXACT,
    is_forkable=True,
    splits=SPLITS,
    has_oracle=True,
    has_progress=True,
    licence="Apache-2.0 (generated shop); WebShop's product texts are scraped and have their own",
    description="Buy what a shopper wishes for. Success is a purchase with WebShop's whole reward. With "
    f"{DATA_VARIABLE} set in the server's environment the shop and the wishes are those of WebShop's files.",
)


class WebShopEnvironment(EpisodicEnvironment):
    """One shopping trip at a time. Ids are `generated/SPLIT/INDEX`, or `file/SPLIT/INDEX` with WebShop's files.

    As in WebShop a search works from every page. An action is invalid where it is of neither form, or clicks what the
    page does not offer; the page stays then.
    """

    spec: ClassVar[EnvironmentSpec] = _SPEC

    @classmethod
    def num_tasks(cls, split: str, filters: Mapping[str, str] | None = None) -> int:
        return _table(_open()[1]).num_tasks(split, filters or {})

    @classmethod
    def tasks(
        cls, split: str, start: int = 0, count: int = 100, filters: Mapping[str, str] | None = None
    ) -> Sequence[TaskInfo]:
        return _table(_open()[1]).page(split, start, count, filters or {})

    @classmethod
    def task(cls, task_id: str) -> TaskInfo:
        return _table(_open()[1]).find(task_id).info

    @classmethod
    def warm_up(cls) -> None:
        """Make or open the shop, and name its content in the spec."""
        cls.spec = dataclasses.replace(_SPEC, data_hash=_open()[0].data_hash)

    def reset(self, task_id: str, seed: int, knobs: Mapping[str, KnobValue]) -> Transition:
        """The task alone fixes shop and wish; the seed changes nothing."""
        catalogue, wishes = _open()
        goal = wishes.goal(_table(wishes).find(task_id))
        self._episode = episode = _Episode(catalogue, goal, self.spec.resolve_knobs(knobs))
        return episode.start()


class _Episode(Episode):
    """A trip from the search page to the purchase."""

    def __init__(self, catalogue: Catalogue, goal: Goal, knobs: Mapping[str, KnobValue]) -> None:
        self._catalogue = catalogue
        self._goal = goal
        self._knobs = knobs
        self._oracle = ShopOracle(catalogue, goal, max_query_chars=MAX_ACTION_CHARS // 2)
        self._view = View()
        self._outcome: RewardParts | None = None

    def start(self) -> Transition:
        return self._transition(is_valid=True)

    def step(self, action: str) -> Transition:
        if self._view.page is Page.DONE:
            raise RuntimeError("step after the end of the episode")
        view = self._after(action)
        if view is None:
            return self._transition(is_valid=False)
        self._view = view
        if view.page is Page.DONE:
            wanted, bought = self._catalogue.product(self._goal.position), self._catalogue.product(view.item)
            self._outcome = reward_parts(bought, view.options.values(), self._goal, wanted)
        return self._transition(is_valid=True)

    def oracle(self) -> str | None:
        """The next action of a short way to the product that the wish was written for, from wherever the shopper is.

        None where that product cannot earn the whole reward or be found by its title, as happens in WebShop's own data.
        """
        plan = self._oracle.plan(self._view) if self._oracle.can_win else []
        return plan[0] if plan else None

    def _after(self, action: str) -> View | None:
        form = bracketed(action, max_chars=MAX_ACTION_CHARS)
        if form is None:
            return None
        name, argument = form[0], form[1].lower()
        if name == "search":
            return searched(self._view, self._catalogue.search(argument))
        parts = parts_of(self._view, self._catalogue, self._goal, 0.0) if name == "click" else []
        part = clickable(parts).get(argument)
        return None if part is None else clicked(self._view, part)

    def _transition(self, *, is_valid: bool) -> Transition:
        dense = self._outcome.total if self._outcome else 0.0
        is_won = dense == 1.0
        reward = float(is_won) if self._knobs["reward"] == "binary" else dense
        parts = parts_of(self._view, self._catalogue, self._goal, reward)
        page = render(parts, str(self._knobs["observation"]))
        return Transition(
            observation=page if is_valid else f"{_INVALID}\n{page}",
            reward=reward,
            score=reward,
            success=is_won,
            is_terminal=self._view.page is Page.DONE,
            action_valid=is_valid,
            progress=1.0 if is_won else self._oracle.progress(self._view) if not self._outcome else 0.0,
            admissible_actions=self._admissible(list(clickable(parts))) if self._knobs["admissible_actions"] else None,
            extras=_extras(self._outcome),
            state_hash=state_hash(page, sorted(self._view.options.items()), sorted(self._view.seen)),
        )

    def _admissible(self, labels: list[str]) -> tuple[str, ...]:
        if self._view.page is Page.DONE:
            return ()
        return (f"search[{self._goal.instruction[: MAX_ACTION_CHARS // 2]}]", *(f"click[{label}]" for label in labels))


def _extras(outcome: RewardParts | None) -> dict[str, str]:
    """The parts of WebShop's reward, after a purchase."""
    if outcome is None:
        return {}
    return {
        "dense_reward": f"{outcome.total:.6f}",
        "type_factor": f"{outcome.type_factor:g}",
        "attributes_matched": str(outcome.num_attributes),
        "options_matched": str(outcome.num_options),
        "price_kept": str(outcome.is_price_kept).lower(),
    }


def _open() -> tuple[Catalogue, Wishes]:
    return open_shop(DATA_VARIABLE, os.environ.get(DATA_VARIABLE, ""))


def _table(wishes: Wishes) -> TaskTable:
    return TaskTable("webshop", {wishes.kind: {}}, wishes.sizes)
