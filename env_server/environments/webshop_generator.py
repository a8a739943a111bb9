"""The generated catalogue, and the wishes of its shoppers.

A product belongs to a split by the digest of its id, so wishes of different splits were written for different products.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from env_server.environments.digests import Draws, number_of
from env_server.environments.webshop_goods import Goal, Product
from env_server.environments.webshop_words import BRANDS, KINDS, MODELS, PRAISE, GoodsKind

GENERATOR_VERSION = 1
"""Rises whenever a task id may give another episode."""

NUM_PRODUCTS = 2000
NO_LIMIT = 1_000_000.0
"""Dollars: WebShop's bound where a wish names none."""

# One quarter of the products each for valid and test.
_SPLIT_OF_QUARTER = ("train", "train", "valid", "test")
_ID_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def generate_products() -> Iterator[Product]:
    """The catalogue, always the same; kinds take turns."""
    names: set[tuple[str, str]] = set()
    for position in range(NUM_PRODUCTS):
        draws = Draws(f"webshop|{GENERATOR_VERSION}|product|{position}")
        kind = KINDS[position % len(KINDS)]
        brand, model = draws.pick(BRANDS), draws.pick(MODELS)
        while (kind.name, f"{brand} {model}") in names:
            brand, model = draws.pick(BRANDS), draws.pick(MODELS)
        names.add((kind.name, f"{brand} {model}"))
        yield _product(draws, kind, f"{brand} {model}", position)


def split_of(product_id: str) -> str:
    """The split whose wishes may be written for this product."""
    return _SPLIT_OF_QUARTER[number_of(product_id) % 4]


def generate_goal(task_id: str, positions: Sequence[int], find_product: Callable[[int], Product]) -> Goal:
    """The wish of a task id, for a product at one of the positions."""
    draws = Draws(f"webshop|{GENERATOR_VERSION}|goal|{task_id}")
    position = draws.pick(positions)
    product = find_product(position)
    attributes = tuple(draws.sample(product.attributes, draws.between(1, 3)))
    options = {name: draws.pick(values) for name, values in product.options.items()}
    phrase = f"Find me {', '.join(attributes)} {product.query}"
    return make_goal(position, product, phrase, attributes, options)


def make_goal(
    position: int, product: Product, phrase: str, attributes: tuple[str, ...], options: Mapping[str, str]
) -> Goal:  # fmt: skip
    """A wish as WebShop's synthetic instructions have it: a phrase, the options, the highest price."""
    choices = ", and ".join(f"{name}: {value}" for name, value in options.items())
    upper, bound = price_bound(product)
    return Goal(
        position=position,
        instruction=f"{phrase}{' with ' if choices else ''}{choices}{bound}",
        attributes=attributes,
        options=tuple(options.values()),
        price_upper=upper,
    )


def price_bound(product: Product) -> tuple[float, str]:
    """The highest price wanted, and how a wish says it: WebShop's draw among the next tens above the price."""
    tens = [10.0 * number for number in range(1, 100) if 10.0 * number > product.price][:4]
    if len(tens) < 2:
        return NO_LIMIT, ""
    upper = max(Draws(f"webshop|bound|{product.product_id}").sample(tens, 2))
    return upper, f", and price lower than {upper:.2f} dollars"


def _product(draws: Draws, kind: GoodsKind, name: str, position: int) -> Product:
    attributes = tuple(draws.sample(kind.attributes, draws.between(3, 6)))
    shown = ", ".join(attribute.title() for attribute in attributes[:2])
    audience = kind.query.split("'s ")[0].title() + "'s " if "'s " in kind.query else ""
    options = {option: _some_in_order(draws, values) for option, values in kind.options.items() if draws.happens(0.8)}
    low, high = kind.prices
    price = draws.between(low, high - 1) + draws.pick((0.49, 0.95, 0.99, 1.0))
    return Product(
        product_id=_product_id(position),
        title=f"{name} {audience}{kind.name}, {shown}",
        description=f"The {name} {kind.name.lower()} with {', '.join(attributes[2:])}. {draws.pick(PRAISE)}",
        features=(*(f"{attribute.capitalize()} {kind.name.lower()}." for attribute in attributes), draws.pick(PRAISE)),
        price=price,
        price_text=f"${price:.2f}",
        rating=f"{3 + draws.below(20) / 10:.1f}",
        reviews=(),
        query=kind.query,
        category=kind.category,
        attributes=attributes,
        options=options,
    )


def _some_in_order(draws: Draws, values: Sequence[str]) -> tuple[str, ...]:
    chosen = set(draws.sample(values, draws.between(2, min(6, len(values)))))
    return tuple(value for value in values if value in chosen)


def _product_id(position: int) -> str:
    """Ten characters; the last three count, so that no two are the same."""
    number = number_of(f"webshop|{GENERATOR_VERSION}|id|{position}")
    letters = "".join(_ID_LETTERS[number // 36**place % 36] for place in range(5))
    tail = "".join(_ID_LETTERS[position // 36**place % 36] for place in (2, 1, 0))
    return f"B0{letters}{tail}"
