"""What the generated catalogue is made of: kinds of goods with their attributes, choices and prices."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodsKind:
    """A kind of goods."""

    name: str
    """As titles have it."""
    query: str
    category: str
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    """A product offers some of the values of some of these."""
    prices: tuple[int, int]
    """Lowest and highest, in dollars."""


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


_COLORS = _listed("black, white, navy, red, olive, burgundy, grey, teal, beige, royal blue, mustard, lavender")
_SIZES = _listed("x-small, small, medium, large, x-large, xx-large")
_SHOE_SIZES = _listed("6, 7, 8, 9, 10, 11, 12")
_PACKS = _listed("1 count, 2 count, 4 count, 6 count, 12 count")
_WEAR = _listed(
    "machine wash, hand wash, loose fit, slim fit, long sleeve, quick drying, daily wear, moisture wicking, stretch "
    "fabric, polyester cotton, drawstring waist, gym workout"
)
_FOOD = _listed(
    "gluten free, sugar free, non gmo, low sodium, dairy free, nut free, certified organic, plant based, keto "
    "friendly, individually wrapped, resealable bag, no artificial colors"
)
_CARE = _listed(
    "cruelty free, paraben free, sulfate free, fragrance free, tea tree, coconut oil, sensitive skin, dry hair, long "
    "lasting, travel size, hyaluronic acid, natural ingredients"
)
_FURNITURE = _listed(
    "solid wood, easy assemble, storage space, space saving, mid century, heavy duty, metal legs, living room, dining "
    "room, faux leather, high density, white finish"
)
_DEVICES = _listed(
    "fast charging, plug and play, noise cancelling, hands free, water resistant, carrying case, wireless charging, "
    "high definition, easy install, long battery life, tempered glass, usb port"
)

KINDS = (
    GoodsKind(
        name="Running Shoes",
        query="men's running shoes",
        category="Clothing, Shoes & Jewelry › Men › Shoes › Athletic",
        attributes=_listed(
            "non slip, rubber sole, arch support, lace up, breathable mesh, memory foam, daily wear, ankle strap, "
            "light weight, quick drying, gym workout, wide toe"
        ),
        options={"color": _COLORS, "size": _SHOE_SIZES},
        prices=(35, 140),
    ),
    GoodsKind(
        name="Hiking Boots",
        query="women's hiking boots",
        category="Clothing, Shoes & Jewelry › Women › Shoes › Outdoor",
        attributes=_listed(
            "non slip, rubber sole, water resistant, lace up, ankle support, memory foam, steel toe, faux fur, thick "
            "sole, winter warm, leather upper, wide toe"
        ),
        options={"color": _COLORS, "size": _SHOE_SIZES},
        prices=(45, 180),
    ),
    GoodsKind(
        name="Hoodie",
        query="men's hoodies",
        category="Clothing, Shoes & Jewelry › Men › Clothing › Hoodies",
        attributes=_WEAR,
        options={"color": _COLORS, "size": _SIZES},
        prices=(18, 75),
    ),
    GoodsKind(
        name="Summer Dress",
        query="women's dresses",
        category="Clothing, Shoes & Jewelry › Women › Clothing › Dresses",
        attributes=_WEAR,
        options={"color": _COLORS, "size": _SIZES, "style": _listed("plain, striped, floral, dotted")},
        prices=(16, 90),
    ),
    GoodsKind(
        name="Shampoo",
        query="shampoo & conditioner",
        category="Beauty & Personal Care › Hair Care › Shampoo & Conditioner › Shampoos",
        attributes=_CARE,
        options={
            "scent": _listed("lavender, rosemary, citrus, vanilla, mint"),
            "size": _listed("8 fl oz, 16 fl oz, 32 fl oz"),
        },
        prices=(6, 38),
    ),
    GoodsKind(
        name="Face Cream",
        query="face moisturizers",
        category="Beauty & Personal Care › Skin Care › Face › Creams",
        attributes=_CARE,
        options={"size": _listed("1 ounce, 2 ounce, 4 ounce"), "pack": _PACKS[:3]},
        prices=(8, 60),
    ),
    GoodsKind(
        name="Toothbrush",
        query="electric toothbrushes",
        category="Beauty & Personal Care › Oral Care › Toothbrushes › Electric",
        attributes=_listed(
            "bpa free, oral hygiene, sensitive teeth, bad breath, teeth whitening, usb charger, travel case, easy use,"
            " long lasting, soft bristles, stainless steel, smart timer"
        ),
        options={"color": _COLORS[:6], "pack": _PACKS[:4]},
        prices=(14, 95),
    ),
    GoodsKind(
        name="Coffee",
        query="ground coffee",
        category="Grocery & Gourmet Food › Beverages › Coffee › Ground",
        attributes=_FOOD[:8] + _listed("fair trade, shade grown, medium roast, rich flavor"),
        options={
            "flavor": _listed("hazelnut, vanilla, dark chocolate, caramel, plain"),
            "size": _listed("10 ounce, 20 ounce, 40 ounce"),
        },
        prices=(7, 45),
    ),
    GoodsKind(
        name="Trail Mix",
        query="snack mixes",
        category="Grocery & Gourmet Food › Snacks › Nuts & Seeds › Mixes",
        attributes=_FOOD,
        options={"flavor": _listed("sea salt, smoky chili, maple, tropical, berry"), "pack": _PACKS},
        prices=(5, 40),
    ),
    GoodsKind(
        name="Green Tea",
        query="tea beverages",
        category="Grocery & Gourmet Food › Beverages › Tea › Green",
        attributes=_FOOD,
        options={"flavor": _listed("jasmine, lemon, peach, ginger, plain"), "pack": _PACKS},
        prices=(4, 35),
    ),
    GoodsKind(
        name="Console Table",
        query="console tables",
        category="Home & Kitchen › Furniture › Living Room Furniture › Tables",
        attributes=_FURNITURE,
        options={
            "color": _listed("walnut, oak, white, black, espresso"),
            "size": _listed("31 inch, 39 inch, 47 inch, 55 inch"),
        },
        prices=(60, 420),
    ),
    GoodsKind(
        name="Office Chair",
        query="office chairs",
        category="Home & Kitchen › Furniture › Office Furniture › Chairs",
        attributes=_FURNITURE[4:] + _listed("lumbar support, height adjustable, easy clean, swivel base"),
        options={"color": _COLORS[:8], "style": _listed("with arms, without arms")},
        prices=(70, 380),
    ),
    GoodsKind(
        name="Bookcase",
        query="bookcases",
        category="Home & Kitchen › Furniture › Living Room Furniture › Shelves",
        attributes=_FURNITURE,
        options={
            "color": _listed("walnut, oak, white, black, grey"),
            "size": _listed("3 tier, 4 tier, 5 tier, 6 tier"),
        },
        prices=(40, 300),
    ),
    GoodsKind(
        name="Curtains",
        query="window curtains",
        category="Home & Kitchen › Home Décor › Window Treatments › Curtains",
        attributes=_listed(
            "machine washable, easy clean, long lasting, energy saving, super soft, eco friendly, living room, "
            "printing technology, room darkening, stainless rods, double sided, easy install"
        ),
        options={"color": _COLORS, "size": _listed("52 x 63 inch, 52 x 84 inch, 52 x 96 inch")},
        prices=(15, 110),
    ),
    GoodsKind(
        name="Headphones",
        query="bluetooth headphones",
        category="Electronics › Headphones › Over-Ear Headphones",
        attributes=_DEVICES,
        options={"color": _COLORS[:7], "style": _listed("wired, wireless")},
        prices=(20, 260),
    ),
    GoodsKind(
        name="Phone Case",
        query="cell phone cases",
        category="Electronics › Cell Phones & Accessories › Cases",
        attributes=_listed(
            "heavy duty, wireless charging, tempered glass, hands free, dust proof, easy install, non slip, case "
            "cover, carbon fiber, high resolution, glass screen, kick stand"
        ),
        options={"color": _COLORS, "size": _listed("5.4 inch, 6.1 inch, 6.7 inch")},
        prices=(8, 48),
    ),
    GoodsKind(
        name="Projector",
        query="video projectors",
        category="Electronics › Television & Video › Projectors",
        attributes=_DEVICES,
        options={"color": _listed("black, white, silver"), "style": _listed("with screen, without screen")},
        prices=(70, 480),
    ),
    GoodsKind(
        name="Camera Bag",
        query="camera bags",
        category="Electronics › Camera & Photo › Bags & Cases",
        attributes=_listed(
            "water resistant, carrying case, light weight, heavy duty, easy carry, quick release, padded straps, high "
            "capacity, tear proof, side pockets, rain cover, soft lining"
        ),
        options={"color": _COLORS[:8], "size": _SIZES[1:4]},
        prices=(22, 150),
    ),
    GoodsKind(
        name="Yoga Mat",
        query="yoga mats",
        category="Sports & Outdoors › Exercise & Fitness › Yoga › Mats",
        attributes=_listed(
            "non slip, eco friendly, easy clean, tear proof, carrying strap, high density, light weight, latex free, "
            "double sided, extra thick, moisture proof, alignment lines"
        ),
        options={"color": _COLORS, "size": _listed("4 mm, 6 mm, 8 mm, 10 mm")},
        prices=(14, 85),
    ),
    GoodsKind(
        name="Water Bottle",
        query="water bottles",
        category="Sports & Outdoors › Outdoor Recreation › Camping › Bottles",
        attributes=_listed(
            "bpa free, leak proof, stainless steel, double wall, dishwasher safe, easy clean, wide mouth, light "
            "weight, carrying strap, straw lid, odor free, shatter proof"
        ),
        options={"color": _COLORS, "size": _listed("12 ounce, 18 ounce, 24 ounce, 32 ounce")},
        prices=(9, 50),
    ),
)

BRANDS = _listed(
    "Alvora, Brackenfield, Cortane, Dunmere, Eskvale, Farrowby, Grenadine, Halvorsen, Istrana, Jorvik, Kestrel, "
    "Lumiere, Marlowe, Norvane, Ostara, Pellworth, Quillon, Ravenna, Solvang, Tamsin, Umbra, Veridian, Westerly, "
    "Xanthe, Yarrow"
)
MODELS = _listed(
    "Apex, Borealis, Cascade, Drift, Ember, Fjord, Glide, Harbor, Indigo, Juniper, Kinetic, Lark, Meridian, Nimbus, "
    "Orbit, Pioneer, Quest, Ridge, Summit, Tempo, Unity, Vista, Willow, Zephyr"
)
PRAISE = (
    "Made to last and tested by hand.",
    "A favourite of our customers for years.",
    "Comes in plain packaging that can be recycled.",
    "If you are not satisfied, send it back within thirty days.",
    "Designed in a small workshop and made in larger ones.",
    "A practical gift for birthdays and holidays.",
)
