"""A catalogue and wishes from WebShop's own files.

The folder holds products as `items_shuffle*.json` (as published) or `*.jsonl` (documents of WebShop's index: `product`
in each line), and attributes as `items_ins_v2*.json`. Wishes are those of `items_human_ins*.json` where it is there,
else the synthetic ones of `items_ins_v2*.json`. Wishes are shuffled and split as published (test 0-499, valid 500-1499,
train the rest); where there are too few, test and valid get a quarter each.
"""

import itertools
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from env_server.environment import EnvironmentBrokenError
from env_server.environments.bracketed import one_line
from env_server.environments.digests import Draws
from env_server.environments.webshop_generator import make_goal, price_bound
from env_server.environments.webshop_goods import Goal, Product

READER_VERSION = 1
"""Rises whenever the same files may give other episodes."""

_LONGEST_ID = 10
_SHUFFLE_SEED = 233
_PUBLISHED_SIZES = {"test": 500, "valid": 1000}


class WebShopFolder:
    """The files of a folder, by what they hold. Raises `EnvironmentBrokenError` where some are missing or malformed."""

    def __init__(self, setting: str, path_text: str) -> None:
        folder = Path(path_text).expanduser()
        if not folder.is_dir():
            raise EnvironmentBrokenError(
                f"{setting} names {folder}, which is no folder; set it to one with WebShop's files"
            )
        self.products = sorted(folder.glob("items_shuffle*.json")) or sorted(folder.glob("*.jsonl"))
        self.attributes = sorted(folder.glob("items_ins_v2*.json"))
        self.wishes = sorted(folder.glob("items_human_ins*.json"))
        if not self.products or not (self.attributes or self.wishes):
            raise EnvironmentBrokenError(
                f"{setting} names {folder}, which lacks WebShop's files: products as items_shuffle*.json or *.jsonl,"
                " and items_ins_v2*.json"
            )

    @property
    def files(self) -> list[Path]:
        return [*self.products, *self.attributes, *self.wishes]

    def read_products(self) -> list[Product]:
        """The products in file order, each id once."""
        attributes = _merged(self.attributes)
        products: dict[str, Product] = {}
        for file in self.products:
            for number, values in enumerate(_product_values(file), start=1):
                product_id = str(values.get("asin", "nan"))
                if product_id == "nan" or len(product_id) > _LONGEST_ID or product_id in products:
                    continue  # as WebShop's own reader does
                try:
                    products[product_id] = _product(values, attributes.get(product_id, {}))
                except (KeyError, TypeError, ValueError) as error:
                    raise EnvironmentBrokenError(
                        f"product {number} of {file} is malformed ({type(error).__name__}: {error}); mend or remove it"
                    ) from error
        return list(products.values())

    def read_goals(self, products: Sequence[Product]) -> dict[str, list[Goal]]:
        """The wishes by split."""
        try:
            if self.wishes:
                goals = list(_human_goals(products, _merged(self.wishes)))
            else:
                goals = list(_synthetic_goals(products, _merged(self.attributes)))
        except (KeyError, TypeError, AttributeError) as error:
            raise EnvironmentBrokenError(
                f"a wish in {self.files[-1]} is malformed ({type(error).__name__}: {error}); mend or remove it"
            ) from error
        if not goals:
            raise EnvironmentBrokenError(f"{self.files[-1]} holds no wish for a product of {self.products[0]}")
        random.Random(_SHUFFLE_SEED).shuffle(goals)
        num_test, num_valid = (min(size, len(goals) // 4) for size in _PUBLISHED_SIZES.values())
        return {
            "train": goals[num_test + num_valid :],
            "valid": goals[num_test : num_test + num_valid],
            "test": goals[:num_test],
        }


def _human_goals(products: Sequence[Product], wishes: Mapping[str, Any]) -> Iterator[Goal]:
    for position, product in enumerate(products):
        for wish in wishes.get(product.product_id, ()):
            attributes, options = wish["instruction_attributes"], wish["instruction_options"]
            if attributes:
                upper, bound = price_bound(product)
                yield Goal(
                    position=position,
                    instruction=_line(wish["instruction"]).strip(".") + bound,
                    attributes=tuple(map(_line, attributes)),
                    options=tuple(map(_line, options.values() if isinstance(options, dict) else options)),
                    price_upper=upper,
                )


def _synthetic_goals(products: Sequence[Product], attributes: Mapping[str, Any]) -> Iterator[Goal]:
    """One for every combination of options."""
    for position, product in enumerate(products):
        entry = attributes.get(product.product_id, {})
        if entry.get("instruction") is None:
            continue
        wanted = tuple(map(_line, entry["instruction_attributes"]))
        names = sorted(product.options)
        for values in itertools.product(*(product.options[name] for name in names)):
            options = dict(zip(names, values, strict=True))
            yield make_goal(position, product, _line(entry["instruction"]), wanted, options)


def _product(values: Mapping[str, Any], attributes: Mapping[str, Any]) -> Product:
    prices, price_text = _prices(values.get("pricing"))
    product_id = str(values["asin"])
    low, high = prices[0], prices[-1]
    return Product(
        product_id=product_id.upper(),
        title=_line(values["name"]),
        description=_line(values.get("full_description") or ""),
        features=_texts(values.get("small_description")),
        # WebShop draws a price anywhere in a range at each start; ours stays the same.
        price=low if high == low else low + (high - low) * Draws(f"webshop|price|{product_id}").below(1000) / 1000,
        price_text=price_text,
        rating=str(values.get("Rating") or "N.A."),
        reviews=tuple(_review(review) for review in values.get("Reviews") or ()),
        query=_line(values["query"]).lower(),
        category=_line(values["product_category"]),
        attributes=tuple(map(_line, attributes.get("attributes") or values.get("Attributes") or ())),
        options=_options(values),
    )


def _prices(pricing: Any) -> tuple[list[float], str]:
    if not pricing:
        return [100.0], "$100.0"
    if isinstance(pricing, str):
        pricing = [re.sub(r"[^\d.]", "", part) for part in pricing.split("$")[1:]]
    prices = [float(part) for part in pricing][:2]
    return prices, " to ".join(f"${price}" for price in prices)


def _options(values: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    options = values.get("options")
    if options is not None:
        return {_line(name).lower(): tuple(_line(value).lower() for value in found) for name, found in options.items()}
    choices: Mapping[str, Any] = values.get("customization_options") or {}
    return {
        _line(name).lower(): tuple(_line(choice["value"].strip().replace("/", " | ")).lower() for choice in found)
        for name, found in choices.items()
        if found is not None
    }


def _line(value: object) -> str:
    return one_line(str(value))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(_line, cast("list[Any]", value))) if isinstance(value, list) else (_line(value or ""),)


def _review(values: Mapping[str, Any]) -> str:
    score = values.get("score", values.get("stars", ""))
    return _line(f'"{values.get("title", "")}" {score} {values.get("body", values.get("review", ""))}')


def _product_values(file: Path) -> Iterator[Mapping[str, Any]]:
    try:
        if file.suffix == ".json":
            yield from json.loads(file.read_bytes())
            return
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                values = json.loads(line)
                yield values.get("product", values)
    except (OSError, ValueError, AttributeError) as error:
        raise EnvironmentBrokenError(f"{file} cannot be read as WebShop's products: {error}") from error


def _merged(files: Sequence[Path]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for file in files:
        try:
            merged.update(json.loads(file.read_bytes()))
        except (OSError, ValueError) as error:
            raise EnvironmentBrokenError(f"{file} cannot be read as a JSON object: {error}") from error
    return merged
