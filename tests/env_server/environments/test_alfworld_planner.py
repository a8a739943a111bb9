"""Goals are read, and plans are as short as a search over single acts finds them."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from env_server.environments.alfworld_goals import GoalPart, Held, Lit, Placed, parse_goal
from env_server.environments.alfworld_planner import Act, Planner
from env_server.environments.alfworld_world import ABILITY_OF, APPLIANCE_OF, OPPOSITE_OF, Receptacle, Thing, World

NUM_ROOMS = 30
VERBS = {"clean": "clean", "heat": "hot", "cool": "cool"}
DERIVED = "(define (:derived (goal1reached) (exists (?o - object) (and (objectType ?o MugType) (holds ?a ?o)))))"


@pytest.mark.parametrize(
    ("goal", "parts"),
    [
        (
            "(and (exists (?r - receptacle) (exists (?o - object) (and (inReceptacle ?o ?r) (objectType ?o CupType)"
            " (receptacleType ?r DeskType)))))",
            (Placed(object_type="cup", receptacle_type="desk"),),
        ),
        (
            "(and (exists (?r - receptacle) (exists (?o - object) (and (heatable ?o) (objectType ?o EggType)"
            " (receptacleType ?r FridgeType) (isHot ?o) (inReceptacle ?o ?r)))))",
            (Placed(object_type="egg", receptacle_type="fridge", state="hot"),),
        ),
        (
            "(and (exists (?r - receptacle) (exists (?o1 - object) (and (objectType ?o1 PenType) (receptacleType ?r"
            " DeskType) (inReceptacle ?o1 ?r) (exists (?o2 - object) (and (not (= ?o1 ?o2)) (objectType ?o2 PenType)"
            " (receptacleType ?r DeskType) (inReceptacle ?o2 ?r)))))))",
            (Placed(object_type="pen", receptacle_type="desk", count=2),),
        ),
        (
            "(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?ot DeskLampType)"
            " (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))"
            " (exists (?o - object ?a - agent) (and (objectType ?o BookType) (holds ?a ?o))))",
            (Lit(object_type="desklamp"), Held(object_type="book")),
        ),
        ("(and (goal1reached))", (Held(object_type="mug"),)),
        ("(and (exists (?o - object) (and (objectType ?o EggType) (isSliced ?o))))", None),
        ("(or (goal1reached))", None),
        ("(and", None),
    ],
)
def test_goals_are_read(goal: str, parts: tuple[GoalPart, ...] | None) -> None:
    assert parse_goal(DERIVED, f"(define (:goal {goal}))") == parts


def test_a_plan_is_as_short_as_a_search_over_acts_finds() -> None:
    for seed in range(NUM_ROOMS):
        goal, world = small_room(Random(seed))
        planner = Planner(goal, world)
        plan = planner.plan()
        shortest = breadth_first(goal, world)
        assert (plan is None) == (shortest is None), seed
        if plan is not None and shortest is not None:
            assert len(plan) == shortest, seed
            assert planner.floor <= shortest, seed
            assert is_goal(goal, after(plan, world)), seed


def test_the_beam_finds_a_plan_where_the_search_is_cut_short() -> None:
    for seed in range(NUM_ROOMS):
        goal, world = small_room(Random(seed))
        plan = Planner(goal, world, max_nodes=1).plan()
        if plan is None:
            assert breadth_first(goal, world) is None, seed
        else:
            assert is_goal(goal, after(plan, world)), seed


def test_an_impossible_goal_has_no_plan() -> None:
    _, world = small_room(Random(0))
    impossible = [Placed(object_type="unicorn", receptacle_type="desk")]
    assert Planner(impossible, world).plan() is None
    assert Planner(impossible, world, max_nodes=0).plan() is None


# A model of its own: single acts, as the domain defines them.


def small_room(random: Random) -> tuple[list[GoalPart], World]:
    kinds = ["desk", "desk", "drawer", random.choice(("sinkbasin", "microwave", "drawer")), "fridge"]
    receptacles = {
        f"{kind} {index}": Receptacle(
            type=kind,
            location=f"l{index if random.random() < 0.8 else 0}",
            is_closed=kind in ("drawer", "fridge") and random.random() < 0.7,
        )
        for index, kind in enumerate(kinds)
    }
    abilities = {"pickupable", *ABILITY_OF.values()}
    things = {
        f"{kind} {index}": Thing(type=kind, receptacle=random.choice(list(receptacles)), traits=set(abilities))
        for index, kind in enumerate(["egg", random.choice(("egg", "cup")), "cup"][: random.choice((2, 2, 3))])
    }
    things["lamp 9"] = Thing(type="lamp", receptacle=random.choice(list(receptacles)), traits={"toggleable"})
    held = random.choice([None, None, list(things)[1]])
    if held is not None:
        things[held].receptacle = None
    world = World(
        location="start",
        held=held,
        receptacles=receptacles,
        things=things,
        can_contain=frozenset((place, thing) for place in kinds for thing in ("egg", "cup")),
    )
    target = random.choice(("desk", "drawer", "fridge"))
    goals: list[list[GoalPart]] = [
        [Placed(object_type="egg", receptacle_type=target, state=random.choice(("", "clean", "hot", "cool")))],
        [Placed(object_type="egg", receptacle_type=target, count=2)],
        [Placed(object_type="egg", receptacle_type=target), Placed(object_type="cup", receptacle_type="desk")],
        [Lit(object_type="lamp"), Held(object_type="egg")],
        [Placed(object_type="egg", receptacle_type=target), Lit(object_type="lamp"), Held(object_type="cup")],
    ]
    return random.choice(goals), world


def breadth_first(goal: list[GoalPart], world: World) -> int | None:
    states = {part.state for part in goal if isinstance(part, Placed)}
    idle = {verb for verb, state in VERBS.items() if state not in states}  # they lead nowhere: a smaller search
    level, seen, depth = [world], {key_of(world)}, 0
    while level:
        if any(is_goal(goal, here) for here in level):
            return depth
        found: list[World] = []
        for here in level:
            for act in acts_in(here):
                if act[0] in idle:
                    continue
                there = after([act], here)
                if key_of(there) not in seen:
                    seen.add(key_of(there))
                    found.append(there)
        level, depth = found, depth + 1
    return None


def key_of(world: World) -> object:
    things = tuple((thing.receptacle, tuple(sorted(thing.traits))) for thing in world.things.values())
    return world.location, world.held, things, tuple(place.is_closed for place in world.receptacles.values())


def acts_in(world: World) -> Iterator[Act]:
    for name, place in world.receptacles.items():
        if place.location != world.location:
            yield ("go", name)
            continue
        if place.is_closed:
            yield ("open", name)
        held = world.held
        for thing, item in world.things.items():
            if item.receptacle == name and "toggleable" in item.traits:
                yield ("use", thing)
            elif item.receptacle == name and held is None and not place.is_closed:
                yield ("take", thing, name)
        if held is not None:
            if not place.is_closed and world.fits(held, name):
                yield ("put", held, name)
            for verb, state in VERBS.items():
                if place.type == APPLIANCE_OF[state]:
                    yield (verb, held, name)


def after(acts: list[Act], world: World) -> World:
    for verb, *words in acts:
        assert (verb, *words) in set(acts_in(world))
        things = {name: replace(thing, traits=set(thing.traits)) for name, thing in world.things.items()}
        world = replace(world, things=things)
        match verb:
            case "go":
                world = replace(world, location=world.receptacles[words[0]].location)
            case "open":
                opened = replace(world.receptacles[words[0]], is_closed=False)
                world = replace(world, receptacles={**world.receptacles, words[0]: opened})
            case "take":
                things[words[0]].receptacle = None
                world = replace(world, held=words[0])
            case "put":
                things[words[0]].receptacle = words[1]
                world = replace(world, held=None)
            case "use":
                things[words[0]].traits.add("toggled")
            case _:
                state = VERBS[verb]
                things[words[0]].traits -= {OPPOSITE_OF.get(state, "")}
                things[words[0]].traits.add(state)
    return world


def is_goal(goal: list[GoalPart], world: World) -> bool:
    return all(is_reached(part, world) for part in goal)


def is_reached(part: GoalPart, world: World) -> bool:
    match part:
        case Held():
            return world.held is not None and world.things[world.held].type == part.object_type
        case Lit():
            return any(
                thing.type == part.object_type
                and "toggled" in thing.traits
                and world.receptacles[thing.receptacle or ""].location == world.location
                for thing in world.things.values()
            )
        case Placed():
            places = [name for name, place in world.receptacles.items() if place.type == part.receptacle_type]
            ready = [thing.receptacle for thing in world.things.values()
                     if thing.type == part.object_type and (not part.state or part.state in thing.traits)]  # fmt: skip
            return any(ready.count(name) >= part.count for name in places)
