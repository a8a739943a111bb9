"""What is sold in the shop and what is wanted there."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One article with its pages."""

    product_id: str
    """Upper case; WebShop's `asin`."""
    title: str
    description: str
    features: tuple[str, ...]
    price: float
    """What is paid, in dollars; `price_text` may say a range round it."""
    price_text: str
    rating: str
    reviews: tuple[str, ...]
    query: str
    """The search phrase of its kind, such as `men's running shoes`."""
    category: str
    """From the widest to the narrowest, between `›`."""
    attributes: tuple[str, ...]
    """Not shown; what a wish is compared with."""
    options: Mapping[str, tuple[str, ...]]
    """Lower case: name of the choice to its values."""

    @property
    def indexed_text(self) -> str:
        """What the search engine sees of it."""
        choices = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join((self.title, self.description, self.features[0] if self.features else "", choices)).lower()

    def to_json(self) -> dict[str, Any]:
        """JSON values for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Product":
        """Build what `to_json` took apart."""
        fields = dict(values)
        fields |= {name: tuple(values[name]) for name in ("features", "reviews", "attributes")}
        fields["options"] = {name: tuple(choices) for name, choices in values["options"].items()}
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A shopper's wish. It was written with one product in mind, and others may fulfil it as well."""

    position: int
    """Of that product in the catalogue."""
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    """Values to choose."""
    price_upper: float
    """Dollars."""
