"""Shopping trips, in the generated shop and in one of WebShop's files."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from env_server.environment import EnvironmentBrokenError, KnobError, KnobValue, Transition
from env_server.environments.webshop import DATA_VARIABLE, WebShopEnvironment
from env_server.environments.webshop_catalogue import GENERATED_SIZES, Catalogue, open_shop
from env_server.environments.webshop_generator import NUM_PRODUCTS, generate_products, split_of
from env_server.environments.webshop_words import KINDS
from tests.env_server.environments.samples import sample

TASK = "generated/train/000000"


@pytest.fixture(autouse=True)
def _generated(games: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.undo()
    WebShopEnvironment.warm_up()  # what follows finds the generated shop


@pytest.fixture
def catalogue() -> Catalogue:
    return open_shop(DATA_VARIABLE, "")[0]


def start(task_id: str = TASK, **knobs: KnobValue) -> tuple[WebShopEnvironment, Transition]:
    environment = WebShopEnvironment()
    return environment, environment.reset(task_id, 0, knobs)


def shop(*actions: str, **knobs: KnobValue) -> list[Transition]:
    environment, first = start(TASK, **knobs)
    return [first, *map(environment.step, actions)]


def follow(environment: WebShopEnvironment) -> list[Transition]:
    transitions: list[Transition] = []
    while not (transitions and transitions[-1].is_terminal):
        action = environment.oracle()
        assert action is not None
        transitions.append(environment.step(action))
        assert len(transitions) < 20
    return transitions


def test_the_first_page_says_the_wish() -> None:
    [first] = shop()
    assert first.observation.startswith("WebShop [SEP] Instruction: [SEP] Find me ")
    assert first.observation.endswith(" [SEP] Search")
    assert "price lower than" in first.observation


def test_pages_are_those_of_webshop(catalogue: Catalogue) -> None:
    environment, first = start()
    wish = first.observation.split(" [SEP] ")[2]
    results = environment.step("search[yoga mat]").observation.split(" [SEP] ")
    assert results[:5] == ["Instruction:", wish, "Back to Search", "Page 1 (Total results: 50)", "Next >"]
    assert len(results) == 5 + 3 * 10
    second = environment.step("click[next >]").observation.split(" [SEP] ")
    assert second[2:6] == ["Back to Search", "Page 2 (Total results: 50)", "< Prev", "Next >"]
    assert not set(second[6::3]) & set(results[5::3])
    *_, last = (environment.step("click[next >]").observation.split(" [SEP] ") for _ in range(3))
    assert last[2:5] == ["Back to Search", "Page 5 (Total results: 50)", "< Prev"]
    assert not environment.step("click[next >]").action_valid
    item = environment.step(f"click[{last[5].lower()}]").observation.split(" [SEP] ")
    assert item[2:4] == ["Back to Search", "< Prev"]
    assert item[-7:-3] == [last[6], f"Price: {last[7]}", item[-5], "Description"]
    assert item[-4:] == ["Description", "Features", "Reviews", "Buy Now"]
    section = environment.step("click[features]").observation.split(" [SEP] ")
    assert section[:4] == ["Instruction:", wish, "Back to Search", "< Prev"]
    assert environment.step("click[< prev]").observation.split(" [SEP] ") == item
    assert environment.step("click[< prev]").observation.split(" [SEP] ") == last
    assert environment.step("click[back to search]").observation == first.observation


def test_the_rich_form_marks_buttons_and_what_was_clicked() -> None:
    environment, _ = start(observation="text_rich")
    plan = [environment.oracle() or ""]
    page = environment.step(plan[0]).observation
    assert "[button] Back to Search [button_]" in page
    product = environment.oracle() or ""
    label = product.removeprefix("click[").removesuffix("]")
    assert f"\n[button] {label.upper()} [button_]" in page
    environment.step(product)
    option = environment.oracle() or ""
    value = option.removeprefix("click[").removesuffix("]")
    page = environment.step(option).observation
    assert page.startswith(f"You have clicked {value}.\n")
    assert f"  [clicked button] {value} [clicked button_]" in page
    assert f"\n[clicked button] {label.upper()} [clicked button_]" in environment.step("click[< prev]").observation


def test_choices_are_kept_on_sections_and_lost_on_leaving() -> None:
    environment, _ = start(observation="text_rich")
    *_, page = (environment.step(environment.oracle() or "") for _ in range(3))
    assert "You have clicked" in page.observation
    environment.step("click[description]")
    assert environment.step("click[< prev]").observation == page.observation
    environment.step("click[< prev]")
    again = environment.step(environment.oracle() or "")
    assert "You have clicked" not in again.observation


def test_buying_without_the_options_earns_the_published_part() -> None:
    environment, _ = start()
    environment.step(environment.oracle() or "")
    environment.step(environment.oracle() or "")
    last = environment.step("click[Buy Now]")
    num_wanted = int(last.extras["attributes_matched"]) + 1 + 1  # this wish asks for one option
    assert last.extras["options_matched"] == "0"
    assert (last.reward, last.score) == (pytest.approx((num_wanted - 1) / num_wanted),) * 2
    assert (last.is_terminal, last.success, last.progress) == (True, False, 0.0)
    assert last.extras["dense_reward"] == f"{last.reward:.6f}"
    assert environment.oracle() is None


def test_the_binary_reward_is_all_or_nothing() -> None:
    for takes_options, reward in ((False, 0.0), (True, 1.0)):
        environment, _ = start(reward="binary")
        environment.step(environment.oracle() or "")
        environment.step(environment.oracle() or "")
        last = follow(environment)[-1] if takes_options else environment.step("click[buy now]")
        assert (last.reward, last.score, last.success) == (reward, reward, takes_options)
        assert last.extras["dense_reward"] != "0.000000"


def test_the_oracle_finds_its_way_from_anywhere() -> None:
    detours = (
        ("search[green tea]", "click[next >]", "click[next >]"),
        ("search[zzz]",),
        ("search[shampoo]", "nonsense", "click[back to search]"),
    )
    for detour in detours:
        environment, _ = start()
        for action in detour:
            environment.step(action)
        last = follow(environment)[-1]
        assert (last.success, last.progress, last.reward) == (True, 1.0, 1.0)


def test_the_oracle_leaves_a_wrong_product_and_corrects_a_wrong_option(catalogue: Catalogue) -> None:
    environment, _ = start()
    page = environment.step(environment.oracle() or "").observation.split(" [SEP] ")
    environment.step(f"click[{page[8].lower()}]")  # the second result
    environment.step("click[features]")
    environment.step(environment.oracle() or "")
    environment.step(environment.oracle() or "")
    item = environment.step(environment.oracle() or "").observation.split(" [SEP] ")
    wanted = (environment.oracle() or "").removeprefix("click[").removesuffix("]")
    values = item[5 : item.index(next(part for part in item if part.startswith("Price:"))) - 1]
    environment.step(f"click[{next(value for value in values if value != wanted)}]")
    assert environment.oracle() == f"click[{wanted}]"
    assert follow(environment)[-1].success


def test_every_product_can_be_found_by_the_oracle_and_wins(catalogue: Catalogue) -> None:
    products = [catalogue.product(position) for position in range(len(catalogue))]
    for position in range(0, len(products), 7):
        assert position in catalogue.search(products[position].title)[:10]
    for split in GENERATED_SIZES:
        for index in range(40):
            environment, first = start(f"generated/{split}/{index:06d}")
            transitions = follow(environment)
            assert transitions[-1].success
            progress = [first.progress, *(transition.progress for transition in transitions)]
            assert progress == sorted(progress, key=lambda value: value or 0.0)


def test_admissible_actions_are_listed_on_request_and_all_work() -> None:
    environment, first = start(admissible_actions=True)
    assert first.admissible_actions is not None
    assert len(first.admissible_actions) == 1
    assert start()[1].admissible_actions is None
    page = environment.step(first.admissible_actions[0])
    assert page.admissible_actions is not None
    assert "click[next >]" in page.admissible_actions
    for action in page.admissible_actions:
        other, _ = start(admissible_actions=True)
        other.step(first.admissible_actions[0])
        assert other.step(action).action_valid


@pytest.mark.parametrize(
    "action", ["click[search]", "click[b000000000]", "click[buy now]", "buy", "search", "Search[]"]
)
def test_what_the_page_does_not_offer_leaves_it_as_it_is(action: str) -> None:
    environment, first = start()
    step = environment.step(action)
    assert not step.action_valid
    assert step.observation.endswith(first.observation)
    assert step.observation.startswith("Invalid action")


def test_names_and_labels_may_be_in_any_case() -> None:
    assert all(step.action_valid for step in shop(" SEARCH[Yoga Mat] ", "Click[NEXT >]", "click[ back to search ]"))


def test_the_catalogue_is_large_varied_and_what_it_was() -> None:
    """A change here needs another GENERATOR_VERSION."""
    products = list(generate_products())
    assert len({product.product_id for product in products}) == len(products) == NUM_PRODUCTS >= 1000
    assert len({product.title for product in products}) == NUM_PRODUCTS
    assert {product.query for product in products} == {kind.query for kind in KINDS}
    assert all(3 <= len(product.attributes) <= 6 for product in products)
    assert sum(len(product.options) > 0 for product in products) > 0.9 * NUM_PRODUCTS
    assert {split_of(product.product_id) for product in products} == {"train", "valid", "test"}
    first = dataclasses.asdict(products[0])
    assert (first["product_id"], first["title"], first["price"]) == FIRST_PRODUCT
    assert WebShopEnvironment().reset(TASK, 0, {}).observation.split(" [SEP] ")[2] == FIRST_WISH


FIRST_PRODUCT = ("B00SNN0000", "Ostara Ridge Men's Running Shoes, Rubber Sole, Memory Foam", 79.95)
FIRST_WISH = (
    "Find me lumbar support, height adjustable office chairs with color: teal, and price lower than 380.00 dollars"
)


def test_bad_knobs_and_filters_are_named() -> None:
    with pytest.raises(KnobError, match="dense, binary"):
        start(reward="none")
    with pytest.raises(KnobError, match="filters: none"):
        WebShopEnvironment.num_tasks("train", {"query": "yoga mats"})


RAW_ID = "B000000001"
RAW: dict[str, object] = {
    "asin": RAW_ID,
    "name": "Oak Side\u00a0Table",
    "full_description": "A table.",
    "small_description": ["Solid wood.", "Easy to clean."],
    "pricing": "$19.99$29.99",
    "query": "Side Tables ",
    "product_category": "Home › Furniture › Tables",
    "customization_options": {"Color": [{"value": "Light/Oak\u200e", "image": None}, {"value": "White"}], "Size": None},
    "images": ["x"],
    "category": "garden",
}
HUMAN = [
    {
        "instruction": "i want a table in white.",
        "instruction_attributes": ["solid wood", "easy to clean"],
        "instruction_options": ["white"],
    },
    {"instruction": "nothing is asked for", "instruction_attributes": [], "instruction_options": []},
]


def write_shop(folder: Path, *, with_human: bool) -> None:
    others = [dict(RAW, asin=f"B00000001{n}", name=f"Pine Shelf {'ABCDEF'[n]}", pricing="") for n in range(6)]
    (folder / "items_shuffle_7.json").write_text(json.dumps([RAW, dict(RAW, asin="nan"), RAW, *others]))
    instruction = {
        "instruction": "Find me side tables",
        "instruction_attributes": ["solid wood"],
        "attributes": ["solid wood"],
    }
    (folder / "items_ins_v2_7.json").write_text(json.dumps({RAW_ID: instruction, "B000000011": {"attributes": []}}))
    if with_human:
        (folder / "items_human_ins.json").write_text(json.dumps({RAW_ID: HUMAN * 4}))


def test_files_as_published_make_the_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shop(tmp_path, with_human=False)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    WebShopEnvironment.warm_up()
    catalogue, wishes = open_shop(DATA_VARIABLE, str(tmp_path))
    assert WebShopEnvironment.spec.data_hash == catalogue.data_hash != "webshop-generated-1.1"
    assert len(catalogue) == 7
    table = catalogue.product(0)
    assert (table.title, table.query, table.price_text) == ("Oak Side Table", "side tables", "$19.99 to $29.99")
    assert table.options == {"color": ("light | oak", "white")}
    assert 19.99 <= table.price <= 29.99
    assert (catalogue.product(1).price, catalogue.product(1).price_text) == (100.0, "$100.0")
    assert sum(wishes.sizes.values()) == 2  # one for each colour
    environment, first = start("file/train/000000")
    assert "Find me side tables with color: " in first.observation
    assert follow(environment)[-1].success


def test_human_wishes_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shop(tmp_path, with_human=True)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert {split: WebShopEnvironment.num_tasks(split) for split in ("train", "valid", "test")} == {
        "train": 2,
        "valid": 1,
        "test": 1,
    }
    environment, first = start("file/test/000000")
    assert "i want a table in white, and price lower than " in first.observation
    assert follow(environment)[-1].success


def test_folders_that_lack_something_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(EnvironmentBrokenError, match=rf"{DATA_VARIABLE} names .*absent, which is no folder"):
        WebShopEnvironment.warm_up()
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    with pytest.raises(EnvironmentBrokenError, match="lacks WebShop's files"):
        WebShopEnvironment.warm_up()
    (tmp_path / "items_ins_v2.json").write_text("{}")
    (tmp_path / "items_shuffle.json").write_text(json.dumps([{"asin": "B000000001", "name": "no more"}]))
    with pytest.raises(EnvironmentBrokenError, match=r"product 1 of .*items_shuffle.json is malformed \(KeyError"):
        WebShopEnvironment.warm_up()
    (tmp_path / "items_shuffle.json").write_text(json.dumps([RAW]))
    with pytest.raises(EnvironmentBrokenError, match="holds no wish for a product"):
        WebShopEnvironment.warm_up()
    (tmp_path / "items_ins_v2.json").write_text(json.dumps({RAW_ID: {"instruction": "x"}}))
    with pytest.raises(EnvironmentBrokenError, match=r"a wish in .* is malformed"):
        WebShopEnvironment.warm_up()


def test_real_products_are_read_found_and_bought(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sample("webshop")
    monkeypatch.setenv(DATA_VARIABLE, str(folder))
    catalogue, wishes = open_shop(DATA_VARIABLE, str(folder))
    assert len(catalogue) == 100
    for position in range(100):
        assert position in catalogue.search(catalogue.product(position).title)[:2]
    num_won = 0
    tasks = [
        info.task_id for split in ("train", "valid", "test") for info in WebShopEnvironment.tasks(split, 0, 10_000)
    ]
    assert len(tasks) == sum(wishes.sizes.values()) > 44
    for task_id in tasks[:: max(1, len(tasks) // 60)]:
        environment, _ = start(task_id)
        num_won += environment.oracle() is not None and follow(environment)[-1].success
    assert num_won == len(tasks[:: max(1, len(tasks) // 60)])
