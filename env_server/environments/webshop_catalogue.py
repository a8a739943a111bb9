"""The catalogue of a shop, with its search engine and its shoppers' wishes; prepared once in the cache."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from env_server.environments.bm25 import RANKING_VERSION, Bm25Index, write_index
from env_server.environments.data_store import Records, files_key, prepared, write_records
from env_server.environments.task_table import SPLITS, TaskKey
from env_server.environments.webshop_files import READER_VERSION, WebShopFolder
from env_server.environments.webshop_generator import GENERATOR_VERSION, generate_goal, generate_products, split_of
from env_server.environments.webshop_goods import Goal, Product

GENERATED_HASH = f"webshop-generated-{GENERATOR_VERSION}.{RANKING_VERSION}"
NUM_RESULTS = 50
GENERATED_SIZES: Mapping[str, int] = {"train": 100_000, "valid": 10_000, "test": 10_000}


class Wishes(Protocol):
    """Where the goals of tasks come from."""

    @property
    def kind(self) -> str:
        """How task ids begin."""
        ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """Number of goals in each split."""
        ...

    def goal(self, key: TaskKey) -> Goal:
        """The goal of a task."""
        ...


class Catalogue:
    """Products by position, and a search over them."""

    def __init__(self, folder: Path) -> None:
        self._records = Records(folder, "products")
        self._index = Bm25Index(folder)
        self.data_hash: str = json.loads((folder / "facts.json").read_bytes())["data_hash"]

    def __len__(self) -> int:
        return len(self._records)

    def product(self, position: int) -> Product:
        """The product at a position. Raises `IndexError`."""
        return Product.from_json(self._records[position])

    def search(self, query: str) -> tuple[int, ...]:
        """Positions of the best products, best first."""
        return tuple(position for position, _ in self._index.ranked(query, NUM_RESULTS))


class GeneratedWishes:
    """Goals made from task ids."""

    kind = "generated"
    sizes = GENERATED_SIZES

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        split_by_position = [split_of(catalogue.product(position).product_id) for position in range(len(catalogue))]
        self._positions = {
            split: [position for position, own in enumerate(split_by_position) if own == split] for split in SPLITS
        }

    def goal(self, key: TaskKey) -> Goal:
        return generate_goal(key.task_id, self._positions[key.split], self._catalogue.product)


class FileWishes:
    """Goals of WebShop's files."""

    kind = "file"

    def __init__(self, folder: Path) -> None:
        self._records = {split: Records(folder, f"goals-{split}") for split in SPLITS}
        self.sizes = {split: len(records) for split, records in self._records.items()}

    def goal(self, key: TaskKey) -> Goal:
        return _goal_from_json(self._records[key.split][key.index])


@lru_cache(maxsize=4)
def open_shop(setting: str, path_text: str) -> tuple[Catalogue, Wishes]:
    """The shop of WebShop's files at a path, or the generated one where the path is empty; once per process.

    Raises `EnvironmentBrokenError`, naming `setting`.
    """
    if not path_text:
        folder = prepared("webshop", f"generated-{GENERATOR_VERSION}.{RANKING_VERSION}", _prepare_generated)
        catalogue = Catalogue(folder)
        return catalogue, GeneratedWishes(catalogue)
    source = WebShopFolder(setting, path_text)
    folder = prepared(
        "webshop",
        files_key(source.files, (READER_VERSION, RANKING_VERSION)),
        lambda folder: _prepare_files(source, folder),
    )
    return Catalogue(folder), FileWishes(folder)


def _prepare_generated(folder: Path) -> None:
    _write_products(folder, list(generate_products()))
    _write_facts(folder, GENERATED_HASH)


def _prepare_files(source: WebShopFolder, folder: Path) -> None:
    products = source.read_products()
    digests = [_write_products(folder, products)]
    for split, goals in source.read_goals(products).items():
        digests.append(write_records(folder, f"goals-{split}", (asdict(goal) for goal in goals)))
    _write_facts(folder, "-".join(("webshop", str(READER_VERSION), *(digest[:8] for digest in digests))))


def _write_products(folder: Path, products: Sequence[Product]) -> str:
    write_index(folder, (product.indexed_text for product in products))
    return write_records(folder, "products", (product.to_json() for product in products))


def _write_facts(folder: Path, data_hash: str) -> None:
    (folder / "facts.json").write_text(json.dumps({"data_hash": data_hash}))


def _goal_from_json(values: Mapping[str, Any]) -> Goal:
    fields = dict(values)
    fields |= {name: tuple(values[name]) for name in ("attributes", "options")}
    return Goal(**fields)
