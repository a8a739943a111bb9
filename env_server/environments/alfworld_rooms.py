"""What the generator furnishes rooms with: receptacles, objects, and which object may lie where. Plain tables."""

from collections.abc import Mapping
from dataclasses import dataclass

OPENABLE = frozenset({"Cabinet", "Drawer", "Fridge", "Microwave", "Safe", "LaundryHamper"})

# Receptacle type: fewest and most of it in a room.
# fmt: off
ROOMS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "kitchen": {
        "Cabinet": (4, 9), "CoffeeMachine": (1, 1), "CounterTop": (1, 3), "DiningTable": (0, 2), "Drawer": (2, 6),
        "Fridge": (1, 1), "GarbageCan": (1, 1), "Microwave": (1, 1), "Shelf": (0, 3), "SideTable": (0, 1),
        "SinkBasin": (1, 1), "StoveBurner": (2, 4), "Toaster": (1, 1),
    },
    "livingroom": {
        "ArmChair": (0, 2), "Cabinet": (0, 4), "CoffeeTable": (1, 2), "Desk": (0, 1), "DiningTable": (0, 1),
        "Drawer": (2, 6), "Dresser": (0, 1), "GarbageCan": (1, 1), "Ottoman": (0, 1), "Safe": (0, 1), "Shelf": (0, 6),
        "SideTable": (1, 3), "Sofa": (1, 1), "TVStand": (1, 1),
    },
    "bedroom": {
        "ArmChair": (0, 1), "Bed": (1, 1), "Cabinet": (0, 3), "Desk": (1, 2), "Drawer": (3, 9), "Dresser": (0, 1),
        "GarbageCan": (1, 1), "LaundryHamper": (0, 1), "Safe": (0, 1), "Shelf": (2, 6), "SideTable": (1, 2),
    },
    "bathroom": {
        "BathtubBasin": (0, 1), "Cabinet": (2, 6), "Cart": (0, 1), "CounterTop": (1, 1), "Drawer": (0, 4),
        "GarbageCan": (1, 1), "HandTowelHolder": (1, 2), "Shelf": (0, 3), "SideTable": (0, 1), "SinkBasin": (1, 2),
        "Toilet": (1, 1), "ToiletPaperHanger": (1, 1), "TowelHolder": (1, 1),
    },
}
# fmt: on

_PLACES: Mapping[str, tuple[str, ...]] = {
    "top": ("CounterTop", "DiningTable", "SideTable", "CoffeeTable", "Desk", "Dresser", "Shelf", "TVStand", "Cart"),
    "store": ("Cabinet", "Drawer"),
    "safe": ("Safe",),
    "seat": ("Sofa", "ArmChair", "Bed", "Ottoman"),
    "bin": ("GarbageCan",),
    "cold": ("Fridge",),
    "oven": ("Microwave",),
    "sink": ("SinkBasin",),
    "tub": ("BathtubBasin",),
    "stove": ("StoveBurner",),
    "coffee": ("CoffeeMachine",),
    "toaster": ("Toaster",),
    "toilet": ("Toilet",),
    "roll": ("ToiletPaperHanger",),
    "towel": ("TowelHolder",),
    "handtowel": ("HandTowelHolder",),
    "hamper": ("LaundryHamper",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A type of object."""

    name: str
    places: frozenset[str]
    """Receptacle types it may lie in."""
    abilities: frozenset[str]
    """`clean`, `hot`, `cool`: the states it can be brought into."""


def _kind(name: str, places: str, abilities: str = "") -> Kind:
    return Kind(
        name=name,
        places=frozenset(place for group in places.split() for place in _PLACES[group]),
        abilities=frozenset(abilities.split()),
    )


_FOOD = "top bin cold oven sink"
_DISH = "top store cold sink"
_CUTLERY = "top store sink"
_SMALL = "top store safe"

OBJECTS: Mapping[str, tuple[Kind, ...]] = {
    "kitchen": (
        _kind("Apple", _FOOD, "clean hot cool"),
        _kind("Bowl", _DISH, "clean cool"),
        _kind("Bread", "top bin cold oven", "hot cool"),
        _kind("ButterKnife", _CUTLERY, "clean"),
        _kind("Cup", f"{_DISH} oven", "clean hot cool"),
        _kind("DishSponge", "top store sink bin", "clean"),
        _kind("Egg", _FOOD, "clean hot cool"),
        _kind("Fork", _CUTLERY, "clean"),
        _kind("Glassbottle", "top store cold bin"),
        _kind("Kettle", "top store sink stove", "clean"),
        _kind("Knife", _CUTLERY, "clean"),
        _kind("Ladle", _CUTLERY, "clean"),
        _kind("Lettuce", "top bin cold sink", "clean cool"),
        _kind("Mug", f"{_DISH} oven coffee", "clean hot cool"),
        _kind("Pan", "top store cold sink stove", "clean cool"),
        _kind("PaperTowelRoll", "top store bin"),
        _kind("PepperShaker", "top store"),
        _kind("Plate", f"{_DISH} oven", "clean hot cool"),
        _kind("Pot", "top store cold sink stove", "clean cool"),
        _kind("Potato", _FOOD, "clean hot cool"),
        _kind("SaltShaker", "top store"),
        _kind("SoapBottle", "top store bin"),
        _kind("Spatula", _CUTLERY, "clean"),
        _kind("Spoon", _CUTLERY, "clean"),
        _kind("Tomato", _FOOD, "clean hot cool"),
        _kind("Vase", "top store"),
        _kind("WineBottle", "top store cold bin", "cool"),
    ),
    "livingroom": (
        _kind("Book", "top store seat"),
        _kind("Box", "top seat"),
        _kind("Candle", "top store"),
        _kind("CellPhone", f"{_SMALL} seat"),
        _kind("CreditCard", f"{_SMALL} seat"),
        _kind("KeyChain", f"{_SMALL} seat"),
        _kind("Laptop", "top seat"),
        _kind("Newspaper", "top store seat bin"),
        _kind("Pen", f"{_SMALL} bin"),
        _kind("Pencil", f"{_SMALL} bin"),
        _kind("Pillow", "seat"),
        _kind("RemoteControl", "top store seat"),
        _kind("Statue", "top safe"),
        _kind("TissueBox", "top store bin"),
        _kind("Vase", "top safe"),
        _kind("Watch", _SMALL),
        _kind("WateringCan", "top store"),
    ),
    "bedroom": (
        _kind("AlarmClock", "top store"),
        _kind("BaseballBat", "top seat"),
        _kind("BasketBall", "top seat"),
        _kind("Book", "top store seat"),
        _kind("CD", f"{_SMALL} bin"),
        _kind("CellPhone", f"{_SMALL} seat"),
        _kind("Cloth", "top store hamper"),
        _kind("CreditCard", _SMALL),
        _kind("KeyChain", _SMALL),
        _kind("Laptop", "top seat"),
        _kind("Mug", "top store"),
        _kind("Pen", f"{_SMALL} bin"),
        _kind("Pencil", f"{_SMALL} bin"),
        _kind("Pillow", "seat"),
        _kind("Statue", "top safe"),
        _kind("TeddyBear", "seat top"),
        _kind("TennisRacket", "seat top"),
        _kind("TissueBox", "top store bin"),
        _kind("Vase", "top safe"),
        _kind("Watch", _SMALL),
    ),
    "bathroom": (
        _kind("Candle", "top store toilet"),
        _kind("Cloth", "top store sink tub", "clean"),
        _kind("DishSponge", "top store sink bin", "clean"),
        _kind("HandTowel", "handtowel sink top"),
        _kind("PaperTowelRoll", "top store toilet bin"),
        _kind("ScrubBrush", "top store toilet"),
        _kind("SoapBar", "top store sink tub toilet bin", "clean"),
        _kind("SoapBottle", "top store toilet bin"),
        _kind("SprayBottle", "top store toilet bin"),
        _kind("TissueBox", "top store toilet bin"),
        _kind("ToiletPaper", "top store roll toilet bin"),
        _kind("Towel", "towel tub"),
    ),
}

# What no train or valid_seen task asks for, though it may lie about there; valid_unseen asks for nothing else.
# fmt: off
HELD_OUT = frozenset({
    "Cup", "Egg", "Kettle", "Knife", "Ladle", "PepperShaker", "Plate", "Pot", "Spoon", "WineBottle",
    "Book", "KeyChain", "Newspaper", "Pencil", "Statue", "TissueBox", "Watch",
    "BasketBall", "CD", "TeddyBear", "Pillow",
    "HandTowel", "SoapBar", "SprayBottle",
})
# fmt: on

LAMP = "DeskLamp"
LAMP_PLACES = ("SideTable", "Desk", "Dresser")
STATE_APPLIANCES = {"clean": "SinkBasin", "hot": "Microwave", "cool": "Fridge"}
