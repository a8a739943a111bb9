"""WebShop's reward for a purchase (Yao et al., WebShop, 2022, section 3.2 and appendix A).

    r = r_type * (attributes matched + options matched + [price <= upper]) / (attributes + options wanted + 1)

One thing differs from the authors' program: it finds the nouns of a title with a statistical tagger, and we by a rule,
so that no model has to be installed and the result does not hang on its version.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from env_server.environments.token_set_ratio import token_set_ratio
from env_server.environments.webshop_goods import Goal, Product

_SAME = 85
"""Phrases above this token-set ratio are one."""

# fmt: off
_COLORS = (
    "alabaster", "apricot", "aqua", "ash", "asphalt", "azure", "banana", "beige", "black", "blue", "blush", "bordeaux",
    "bronze", "brown", "burgundy", "camel", "camo", "caramel", "champagne", "charcoal", "cheetah", "chestnut",
    "chocolate", "christmas", "coffee", "cognac", "copper", "coral", "cranberry", "cream", "crystal", "dark", "denim",
    "eggplant", "elephant", "espresso", "fuchsia", "gold", "granite", "grape", "graphite", "grass", "gray", "green",
    "grey", "heather", "indigo", "ivory", "ivy", "khaki", "lavender", "lemon", "leopard", "light", "lilac", "lime",
    "magenta", "maroon", "mauve", "merlot", "midnight", "mint", "mocha", "multicolor", "mushroom", "mustard", "natural",
    "navy", "nude", "olive", "orange", "peach", "pewter", "pink", "plum", "purple", "rainbow", "red", "rose", "royal",
    "rust", "sand", "sapphire", "seashell", "silver", "skull", "slate", "steel", "stone", "stonewash", "sunflower",
    "tan", "taupe", "teal", "tiger", "turquoise", "violet", "walnut", "wheat", "white", "wine", "yellow",
)
"""The basic colours that WebShop reduces options to, in its order."""

_NO_NOUNS = frozenset((
    "a", "an", "and", "as", "at", "by", "for", "from", "in", "is", "it", "of", "on", "or", "our", "the", "this", "to",
    "up", "with", "without", "your", "all", "any", "every", "both", "more", "most", "non", "not", "only", "very",
    "big", "black", "blue", "brown", "casual", "clear", "cute", "deep", "dry", "easy", "extra", "fast", "fresh", "full",
    "funny", "gray", "green", "grey", "heavy", "high", "hot", "large", "light", "long", "low", "medium", "mini", "new",
    "old", "pink", "portable", "premium", "pure", "purple", "quick", "red", "short", "slim", "small", "soft", "solid",
    "super", "sweet", "thick", "thin", "warm", "waterproof", "wet", "white", "wide", "yellow",
))
# fmt: on
_WORD = re.compile(r"[^\W\d_]+(?:[.'’][^\W\d_]+)*\.?")
_PARTICIPLE = re.compile(r".{2,}[^e]ed")
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardParts:
    """The dense reward and what it is made of."""

    total: float
    type_factor: float
    num_attributes: int
    num_options: int
    is_price_kept: bool


def reward_parts(bought: Product, chosen: Iterable[str], goal: Goal, wanted: Product) -> RewardParts:
    """The reward of buying a product with the chosen option values; `wanted` is the goal's own product."""
    factor = _type_factor(bought, wanted)
    num_attributes = sum(_has_attribute(bought, attribute) for attribute in goal.attributes)
    num_options = _num_options(chosen, goal.options)
    is_price_kept = bought.price <= goal.price_upper
    share = (num_attributes + num_options + is_price_kept) / (len(goal.attributes) + len(goal.options) + 1)
    return RewardParts(
        total=factor * share,
        type_factor=factor,
        num_attributes=num_attributes,
        num_options=num_options,
        is_price_kept=is_price_kept,
    )


def title_score(bought: str, wanted: str) -> float:
    """The share of the wanted title's nouns that the other title has too; 0.2 where it has no nouns."""
    nouns = title_nouns(wanted)
    return len(set(nouns) & set(title_nouns(bought))) / len(nouns) if nouns else 0.2


def title_nouns(title: str) -> list[str]:
    """Words of a title that count as nouns, in lower case: no numbers, function words, participles, adjectives."""
    parts = [part for part in re.split(r"[\s/,;:()\[\]|&+\"-]+", title) if part and not _DIGIT.search(part)]
    words = [word.lower() for part in parts for word in _WORD.findall(part)]
    return [word for word in words if len(word) > 1 and word not in _NO_NOUNS and not _PARTICIPLE.fullmatch(word)]


def basic_color(option: str) -> str:
    """The first basic colour that an option value contains, else the value."""
    return next((color for color in _COLORS if color in option), option)


def same_option(one: str, other: str) -> bool:
    """Whether two option values count as one."""
    return token_set_ratio(basic_color(one), basic_color(other)) > _SAME


def _type_factor(bought: Product, wanted: Product) -> float:
    score = title_score(bought.title, wanted.title)
    if score == 0.0:
        return 0.0
    if score < 0.1:
        return 0.1
    is_near = bought.query == wanted.query or len(_levels(bought) & _levels(wanted)) >= 2 or score > 0.2
    return 1.0 if is_near else 0.5


def _levels(product: Product) -> set[str]:
    return {level.strip() for level in product.category.split("›")}


def _has_attribute(product: Product, attribute: str) -> bool:
    texts = (product.title, " ".join(product.features), product.description)
    is_named = any(token_set_ratio(own, attribute) > _SAME for own in product.attributes)
    return is_named or any(attribute in text.lower() for text in texts)


def _num_options(chosen: Iterable[str], wanted: Iterable[str]) -> int:
    values = tuple(chosen)
    return sum(any(same_option(value, option) for value in values) for option in wanted)
