"""The reward of a purchase against the examples of WebShop's own tests, and numbers computed by hand."""

from dataclasses import replace

import pytest

from env_server.environments.token_set_ratio import token_set_ratio
from env_server.environments.webshop_goods import Goal, Product
from env_server.environments.webshop_reward import basic_color, reward_parts, same_option, title_nouns, title_score

SNEAKER = "Mens D.O.N. Issue 2 Gca Basketball Sneakers Shoes Casual - Off White"
CORD = "Saireed UL Listed 2 Prong Power Cord for JBL Bar 3.1 Bar 2.1 Channel 4K Ultra HD Soundbar"
OTHER_CORD = (
    "BRST AC Power Cord Outlet Socket Cable Plug Lead for Panasonic SC-HT830V DVD/VCR Combo Home Theater System"
)


def product(**changes: object) -> Product:
    bare = Product(
        product_id="B0",
        title=SNEAKER,
        description="",
        features=(),
        price=35.0,
        price_text="$35.00",
        rating="N.A.",
        reviews=(),
        query="query 1",
        category="a › b › c",
        attributes=("tea tree", "essential oil", "natural ingredients"),
        options={},
    )
    return replace(bare, **changes)  # type: ignore[arg-type]


GOAL = Goal(
    position=0,
    instruction="",
    attributes=("tea tree", "essential oils", "natural ingredients"),
    options=("grey", "xl"),
    price_upper=40.0,
)
BOTH = ("grey", "xl")
WORDED = {
    "attributes": (),
    "title": SNEAKER,
    "features": ("This shampoo has essential oils and smells like lemons",),
    "description": "Best shampoo on the market, made with natural ingredients",
}


def total(bought: Product, chosen: tuple[str, ...] = BOTH, goal: Goal = GOAL, wanted: Product | None = None) -> float:
    return reward_parts(bought, chosen, goal, wanted or product()).total


def test_the_wish_fulfilled_earns_all() -> None:
    parts = reward_parts(product(), BOTH, GOAL, product())
    assert (parts.total, parts.type_factor, parts.num_attributes, parts.num_options) == (1.0, 1.0, 3, 2)
    assert parts.is_price_kept


def test_attributes_count_where_the_pages_say_them() -> None:
    assert total(product(**WORDED)) == pytest.approx(5 / 6)  # tea tree is missing


def test_each_part_has_its_share() -> None:
    assert total(product(), ("grey",)) == pytest.approx(5 / 6)
    assert total(product(), ("blue", "xl")) == pytest.approx(5 / 6)
    assert total(product(), ()) == pytest.approx(4 / 6)
    assert total(product(price=40.01)) == pytest.approx(5 / 6)
    assert total(product(price=40.0)) == 1.0
    assert total(product(attributes=()), ()) == pytest.approx(1 / 6)
    assert total(product(), ("grey",), replace(GOAL, options=())) == 1.0


def test_another_type_takes_off_half_or_more() -> None:
    wanted = product(title=CORD)
    near = {"title": OTHER_CORD, "query": "query 2", "category": "a › d › e"}
    assert total(product(title=OTHER_CORD), wanted=wanted) == 1.0  # the same query
    assert total(product(**near | {"category": "c › x › a"}), wanted=wanted) == 1.0  # two levels shared
    assert total(product(**near), wanted=wanted) == 0.5  # two of twelve nouns shared
    assert total(product(**near | {"title": "Garden Gnome"}), wanted=wanted) == 0.0
    eleven = "Alpha Bravo Charlie Delta Foxtrot Golf Hotel India Juliet Kilo Lima"
    assert total(product(title="Lima Bean"), wanted=product(title=eleven)) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("wanted", "bought", "score"),
    [
        ("adidas Unisex-Adult D.o.n. Issue 2 Basketball Shoe", "adidas Unisex-Adult D.o.n. Issue 2 Court Shoe", 0.85),
        (f"{CORD} Home Theater System Subwoofer", OTHER_CORD, 0.31),
        (CORD, OTHER_CORD, 0.17),
        ("Rusticware 921ORB Kitchen and Bath Cabinet Knob", "Minkissy 2pcs Steel Eyebrow Tweezers (Silver)", 0.0),
        ("Name 1", "Name 1", 1.0),
        ("1000 x 3.5", "anything", 0.2),
    ],
)  # fmt: skip
def test_titles_score_as_in_webshops_own_tests(wanted: str, bought: str, score: float) -> None:
    assert title_score(bought, wanted) == pytest.approx(score, abs=0.01)


def test_nouns_leave_out_what_is_none() -> None:
    assert title_nouns("2-Pack Soft Padded Straps for the Feed Bag, 3.5in (Red)") == ["pack", "straps", "feed", "bag"]


@pytest.mark.parametrize(
    ("option", "color"),
    [("", ""), ("black forest", "black"), ("violet lavender", "lavender"), ("steelivy fuchsia", "fuchsia"),
     ("123alabaster", "alabaster"), ("webshop", "webshop")],
)  # fmt: skip
def test_colours_are_reduced_as_in_webshops_own_tests(option: str, color: str) -> None:
    assert basic_color(option) == color


def test_options_are_the_same_by_colour_or_by_words() -> None:
    assert same_option("dark navy stripe", "dark")
    assert same_option("cool powder snow", "powder snow")
    assert same_option("large", "x-large")  # as published: all words of one are among the other's
    assert not same_option("small", "x-large")
    assert not same_option("8", "9")


@pytest.mark.parametrize(
    ("one", "other", "ratio"),
    [
        # 2 * 13 characters in common of 13 + 14, so 96.3.
        ("essential oil", "essential oils", 96),
        ("fuzzy was a bear", "fuzzy fuzzy was a bear", 100),
        ("Pack of 12", "12-pack, of", 100),
        ("%", "%", 0),
        ("", "red", 0),
        # Shared "a fuzzy was" (11) against "a fuzzy was bear wuzzy" (22): 66.7; both whole: 2 * 18 of 22 + 19, so 87.8.
        ("wuzzy fuzzy was a bear", "cat fuzzy was a", 85),
        ("natural ingredients", "essential oils", 36),
    ],
)
def test_token_set_ratios(one: str, other: str, ratio: int) -> None:
    assert token_set_ratio(one, other) == token_set_ratio(other, one) == ratio
