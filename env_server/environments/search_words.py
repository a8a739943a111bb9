"""The names and relations of the generated world that the search environment asks about."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """What an article says of its subject. `{}` stands for the subject, `{value}` for what it is related to."""

    name: str
    sentence: str
    question: str
    phrase: str = ""
    """How the other subject can be spoken of, where the relation leads to one."""
    leads_to: str = ""
    """Kind of the other subject; empty where the value is only a value."""
    values: tuple[str, ...] = ()
    numbers: tuple[int, int] | None = None
    """Lowest and highest."""


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


_INSTRUMENTS = _listed("violin, cello, oboe, clarinet, trumpet, harp, accordion, bassoon, lute, flute")
_GOODS = _listed("clocks, bicycles, glass, paper, ropes, pianos, lanterns, boots, tiles, scales, saddles, kettles")
_FLOWERS = _listed("iris, thistle, poppy, cornflower, gentian, foxglove, marigold, harebell, clover, primrose")
_FESTIVALS = _listed(
    "Kite Week, the Night of Lamps, the Herring Fair, Bell Sunday, the Harvest Games, the Snow Market, Drum Day, the "
    "Apple Parade"
)

RELATIONS: Mapping[str, tuple[Relation, ...]] = {
    "person": (
        Relation(
            name="birthplace",
            sentence="{} was born in {value}.",
            question="Where was {} born?",
            phrase="the birthplace of {}",
            leads_to="town",
        ),
        Relation(
            name="employer",
            sentence="For most of a long career {} worked for {value}.",
            question="Which company did {} work for?",
            phrase="the company that {} worked for",
            leads_to="company",
        ),
        Relation(
            name="teacher",
            sentence="{} learned the trade from {value}.",
            question="Who taught {}?",
            phrase="the teacher of {}",
            leads_to="person",
        ),
        Relation(
            name="birth_year",
            sentence="{} was born in the year {value}.",
            question="In which year was {} born?",
            numbers=(1790, 1960),
        ),
        Relation(
            name="instrument",
            sentence="In the evenings {} liked to play the {value}.",
            question="Which instrument did {} play?",
            values=_INSTRUMENTS,
        ),
    ),
    "town": (
        Relation(
            name="river",
            sentence="{} lies on the river {value}.",
            question="Which river does {} lie on?",
            phrase="the river that {} lies on",
            leads_to="river",
        ),
        Relation(
            name="region",
            sentence="{} belongs to the region of {value}.",
            question="Which region does {} belong to?",
            phrase="the region that {} belongs to",
            leads_to="region",
        ),
        Relation(
            name="twin",
            sentence="The twin town of {} is {value}.",
            question="What is the twin town of {}?",
            phrase="the twin town of {}",
            leads_to="town",
        ),
        Relation(
            name="charter",
            sentence="{} was given its charter in {value}.",
            question="In which year was {} given its charter?",
            numbers=(1100, 1690),
        ),
        Relation(
            name="festival",
            sentence="Visitors know {} for {value}.",
            question="Which festival is {} known for?",
            values=_FESTIVALS,
        ),
    ),
    "river": (
        Relation(
            name="mouth",
            sentence="The {} reaches the sea at {value}.",
            question="At which town does {} reach the sea?",
            phrase="the town where {} reaches the sea",
            leads_to="town",
        ),
        Relation(
            name="length",
            sentence="The {} is {value} kilometres long.",
            question="How many kilometres long is {}?",
            numbers=(40, 900),
        ),
    ),
    "company": (
        Relation(
            name="seat",
            sentence="The head office of {} is in {value}.",
            question="Where is the head office of {}?",
            phrase="the town with the head office of {}",
            leads_to="town",
        ),
        Relation(
            name="founder",
            sentence="{} was founded by {value}.",
            question="Who founded {}?",
            phrase="the founder of {}",
            leads_to="person",
        ),
        Relation(
            name="founded",
            sentence="{} opened its first workshop in {value}.",
            question="In which year did {} open its first workshop?",
            numbers=(1820, 1990),
        ),
        Relation(name="goods", sentence="{} makes {value}.", question="What does {} make?", values=_GOODS),
    ),
    "book": (
        Relation(
            name="author",
            sentence="{} was written by {value}.",
            question="Who wrote {}?",
            phrase="the author of {}",
            leads_to="person",
        ),
        Relation(
            name="setting",
            sentence="The story of {} takes place in {value}.",
            question="Where does {} take place?",
            phrase="the town where {} takes place",
            leads_to="town",
        ),
        Relation(
            name="published",
            sentence="{} appeared in {value}.",
            question="In which year did {} appear?",
            numbers=(1840, 1995),
        ),
    ),
    "region": (
        Relation(
            name="capital",
            sentence="The capital of {} is {value}.",
            question="What is the capital of {}?",
            phrase="the capital of {}",
            leads_to="town",
        ),
        Relation(
            name="governor",
            sentence="The first governor of {} was {value}.",
            question="Who was the first governor of {}?",
            phrase="the first governor of {}",
            leads_to="person",
        ),
        Relation(
            name="flower",
            sentence="The flower of {} is the {value}.",
            question="What is the flower of {}?",
            values=_FLOWERS,
        ),
    ),
}

NUM_SUBJECTS: Mapping[str, int] = {"person": 500, "town": 260, "river": 90, "company": 240, "book": 280, "region": 60}

FIRST_NAMES = _listed(
    "Agnes, Albin, Berta, Casimir, Clara, Cornel, Dora, Edwin, Elsa, Emil, Fanny, Felix, Greta, Henrik, Ida, Ivo, "
    "Jolanda, Karl, Lena, Linus, Magda, Moritz, Nelly, Oskar, Paula, Rufus, Selma, Tobias, Ulla, Viktor"
)
LAST_NAMES = _listed(
    "Abendroth, Brannock, Castellan, Dravec, Ellerman, Fenwright, Garrowby, Hollin, Ingersen, Jastrow, Kellerby, "
    "Lindqvist, Marchetti, Nordahl, Ostrander, Pemberlin, Quarles, Rosendal, Sandoval, Thorncroft, Ullman, Vandermeer,"
    " Wexford, Yarborough, Zelenka"
)
PLACE_BEGINNINGS = _listed(
    "Alder, Birken, Carn, Dover, Elm, Fair, Glen, Hazel, Iver, Kirk, Lang, Mill, North, Oaken, Pember, Quarry, Raven, "
    "Stan, Thorn, Under, Wester, Wind"
)
TOWN_ENDINGS = _listed("bridge, bury, combe, dale, ford, gate, ham, haven, ley, mouth, stead, ton, wick, worth")
RIVER_ENDINGS = _listed("ach, an, ell, era, in, is, ow, une")
REGION_ENDINGS = _listed("ia, mark, mere, shire, land")
COMPANY_ENDINGS = _listed("& Sons, Brothers, Works, Manufactory, & Company, Workshops")
TITLE_BEGINNINGS = _listed(
    "The Silent, The Last, A Distant, The Broken, The Winter, An Honest, The Hidden, The Second, A Borrowed, The "
    "Crooked, The Painted, The Empty"
)
TITLE_ENDINGS = _listed(
    "Harbour, Orchard, Letter, Staircase, Clockmaker, Ferry, Garden, Witness, Lantern, Mirror, Voyage, Bridge,"
    " Gallery, Island, Ledger, Winemaker, Station, Crossing, Quarrel, Inheritance, Tower, Apprentice, Summer, "
    "Chimney, Passage"
)
ASIDES: Mapping[str, tuple[str, ...]] = {
    "person": (
        "Several letters have survived.",
        "A street was named in memory.",
        "Little is known of the early years.",
    ),
    "town": ("The old market hall still stands.", "Two bridges were lost in a flood.", "The museum opens on Sundays."),
    "river": (
        "Otters have come back to its upper course.",
        "Barges used it until the railway came.",
        "It often freezes.",
    ),
    "company": (
        "A fire destroyed the first building.",
        "The archive is open to visitors.",
        "It once had a brass band.",
    ),
    "book": ("Critics were divided.", "It has been translated many times.", "The manuscript was lost for a decade."),
    "region": ("Its borders have changed three times.", "Orchards cover the southern half.", "A railway crosses it."),
}
KIND_NOUNS: Mapping[str, str] = {
    "person": "was a craftsman and writer",
    "town": "is a town",
    "river": "is a river",
    "company": "is a company",
    "book": "is a novel",
    "region": "is a region",
}
