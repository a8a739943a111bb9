"""The shortest way that is known to a product and its options, from anywhere in the shop."""

from env_server.environments.webshop_catalogue import Catalogue
from env_server.environments.webshop_goods import Goal, Product
from env_server.environments.webshop_pages import (
    BACK_TO_SEARCH,
    BUY,
    NEXT_PAGE,
    PAGE_SIZE,
    PREVIOUS_PAGE,
    Page,
    View,
)
from env_server.environments.webshop_reward import reward_parts, same_option


class ShopOracle:
    """Buys the product that a wish was written for. It finds it by its title."""

    def __init__(self, catalogue: Catalogue, goal: Goal, *, max_query_chars: int) -> None:
        wanted = catalogue.product(goal.position)
        self._position, self._product_id = goal.position, wanted.product_id
        self._choices = _choices(goal, wanted)
        self._query = "".join(letter for letter in wanted.title if letter.isprintable())[:max_query_chars].strip()
        self._results = catalogue.search(self._query)
        can_win = reward_parts(wanted, self._choices.values(), goal, wanted).total == 1.0
        self.can_win = can_win and self._position in self._results
        """Whether following it earns the whole reward."""
        self._num_steps = len(self.plan(View())) if self.can_win else 0

    def plan(self, view: View) -> list[str]:
        """All actions that are left; empty when all is done."""
        match view.page:
            case Page.DONE:
                return []
            case Page.SEARCH:
                found = View(page=Page.RESULTS, results=self._results)
                return [f"search[{self._query}]", *self.plan(found)]
            case Page.RESULTS:
                return self._from_results(view)
            case Page.SECTION:
                return [_click(PREVIOUS_PAGE), *self._from_item(view)]
            case Page.ITEM:
                return self._from_item(view)

    def progress(self, view: View) -> float | None:
        """The share of the way from the search page that is done, in [0, 1]; None where no way is known."""
        return max(0.0, 1.0 - len(self.plan(view)) / self._num_steps) if self.can_win else None

    def _from_results(self, view: View) -> list[str]:
        if self._position not in view.results:
            return [_click(BACK_TO_SEARCH), *self.plan(View())]
        ahead = view.results.index(self._position) // PAGE_SIZE + 1 - view.page_number
        turns = [_click(NEXT_PAGE if ahead > 0 else PREVIOUS_PAGE)] * abs(ahead)
        return [*turns, _click(self._product_id), *self._on_item({})]

    def _from_item(self, view: View) -> list[str]:
        if view.item == self._position:
            return self._on_item(dict(view.options))
        return [_click(PREVIOUS_PAGE), *self._from_results(view)]

    def _on_item(self, options: dict[str, str]) -> list[str]:
        left = [value for name, value in self._choices.items() if options.get(name) != value]
        return [*map(_click, left), _click(BUY)]


def _choices(goal: Goal, product: Product) -> dict[str, str]:
    """Values of the product's options that fulfil the wish, at most one per option."""
    # Where two options have a value in common, a click on it chooses the later option's.
    name_by_value = {value: name for name, values in product.options.items() for value in values}
    choices: dict[str, str] = {}
    for wanted in goal.options:
        if any(same_option(value, wanted) for value in choices.values()):
            continue
        fitting = [value for value in name_by_value if value == wanted or same_option(value, wanted)]
        free = [value for value in fitting if name_by_value[value] not in choices]
        if free:
            best = wanted if wanted in free else free[0]
            choices[name_by_value[best]] = best
    return choices


def _click(label: str) -> str:
    return f"click[{label.lower()}]"
