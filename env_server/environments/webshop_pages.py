"""The pages of the shop: where a shopper is, what the page shows there, and where a click leads.

Pages, buttons and their order are WebShop's, and so are the two text forms of a page: `text` (`[SEP]` between the
parts) and `text_rich` (a part per line, buttons marked).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

from env_server.environments.webshop_catalogue import Catalogue
from env_server.environments.webshop_goods import Goal, Product

PAGE_SIZE = 10
TEXT_FORMS = ("text", "text_rich")
SECTIONS = ("Description", "Features", "Reviews")

BACK_TO_SEARCH = "Back to Search"
NEXT_PAGE = "Next >"
PREVIOUS_PAGE = "< Prev"
BUY = "Buy Now"


class Page(Enum):
    """The kinds of pages."""

    SEARCH = "search"
    RESULTS = "results"
    ITEM = "item"
    SECTION = "section"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Where the shopper is and what is chosen there."""

    page: Page = Page.SEARCH
    results: tuple[int, ...] = ()
    """Positions in the catalogue, of the last search."""
    page_number: int = 1
    """Of the results; from 1."""
    item: int = -1
    """Position of the product looked at; read on its pages only."""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    section: str = ""
    seen: frozenset[int] = frozenset()
    """Products looked at since the start or the last return to the search page."""

    @property
    def shown(self) -> tuple[int, ...]:
        """The results on this page of them."""
        return self.results[(self.page_number - 1) * PAGE_SIZE : self.page_number * PAGE_SIZE]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One piece of a page."""

    text: str
    kind: Literal["plain", "button", "product", "option"] = "plain"
    position: int = -1
    """Of the product that a `product` leads to."""
    option: str = ""
    """Name of the choice that an `option` is a value of."""
    was_clicked: bool = False

    @property
    def label(self) -> str:
        """What a click names."""
        return self.text.lower()


def parts_of(view: View, catalogue: Catalogue, goal: Goal, score: float) -> list[Part]:
    """What the page shows, in order; `score` is told when all is done."""
    if view.page is Page.DONE:
        return [
            _plain("Thank you for shopping with us!"),
            _plain("Your score (min 0.0, max 1.0)"),
            _plain(f"{score:g}"),
        ]
    instruction = [_plain("Instruction:"), _plain(goal.instruction)]
    if view.page is Page.SEARCH:
        return [_plain("WebShop"), *instruction, _button("Search")]
    if view.page is Page.RESULTS:
        return [*instruction, *_results(view, catalogue)]
    product = catalogue.product(view.item)
    head = [*instruction, _button(BACK_TO_SEARCH), _button(PREVIOUS_PAGE)]
    return [*head, *(_item(view, product) if view.page is Page.ITEM else map(_plain, _section(view, product)))]


def clickable(parts: list[Part]) -> dict[str, Part]:
    """What can be clicked, by label; of two with one label the options win, and the later one."""
    found = [part for part in parts if part.kind in ("button", "product") and part.text != "Search"]
    found += [part for part in parts if part.kind == "option"]
    return {part.label: part for part in found}


def render(parts: list[Part], form: str) -> str:
    """The page as text."""
    if form == "text":
        return " [SEP] ".join(part.text for part in parts)
    chosen = [f"You have clicked {part.text}." for part in parts if part.kind == "option" and part.was_clicked]
    return "\n".join([*reversed(chosen), *map(_rich, parts)])


def searched(view: View, results: tuple[int, ...]) -> View:
    """The results page of a new search."""
    return View(page=Page.RESULTS, results=results, seen=view.seen)


def clicked(view: View, part: Part) -> View:
    """Where a click leads."""
    if part.kind == "product":
        return replace(view, page=Page.ITEM, item=part.position, options={}, seen=view.seen | {part.position})
    if part.kind == "option":
        return replace(view, options={**view.options, part.option: part.text})
    if part.text == BACK_TO_SEARCH:
        return View()
    if part.text == NEXT_PAGE:
        return replace(view, page_number=view.page_number + 1)
    if part.text == PREVIOUS_PAGE:
        return _back(view)
    if part.text == BUY:
        return replace(view, page=Page.DONE)
    return replace(view, page=Page.SECTION, section=part.text)


def _back(view: View) -> View:
    if view.page is Page.SECTION:
        return replace(view, page=Page.ITEM, section="")
    if view.page is Page.ITEM:
        return replace(view, page=Page.RESULTS, options={})
    return replace(view, page_number=view.page_number - 1)


def _results(view: View, catalogue: Catalogue) -> Iterator[Part]:
    yield _button(BACK_TO_SEARCH)
    yield _plain(f"Page {view.page_number} (Total results: {len(view.results)})")
    if view.page_number > 1:
        yield _button(PREVIOUS_PAGE)
    if view.page_number * PAGE_SIZE < len(view.results):
        yield _button(NEXT_PAGE)
    for position in view.shown:
        product = catalogue.product(position)
        yield Part(text=product.product_id, kind="product", position=position, was_clicked=position in view.seen)
        yield _plain(product.title)
        yield _plain(product.price_text)


def _item(view: View, product: Product) -> Iterator[Part]:
    for name, values in product.options.items():
        yield _plain(name)
        for value in values:
            yield Part(text=value, kind="option", option=name, was_clicked=view.options.get(name) == value)
    yield _plain(product.title)
    yield _plain(f"Price: {product.price_text}")
    yield _plain(f"Rating: {product.rating}")
    yield from map(_button, (*SECTIONS, BUY))


def _section(view: View, product: Product) -> tuple[str, ...]:
    match view.section:
        case "Description":
            return (product.description,)
        case "Features":
            return product.features or ("No Features",)
        case _:
            return product.reviews or ("No reviews found",)


def _rich(part: Part) -> str:
    indent = "  " if part.kind == "option" else "\n" if part.kind == "product" else ""
    name = "clicked button" if part.was_clicked else "button"
    return part.text if part.kind == "plain" else f"{indent}[{name}] {part.text} [{name}_]"


def _plain(text: str) -> Part:
    return Part(text=text)


def _button(text: str) -> Part:
    return Part(text=text, kind="button")
