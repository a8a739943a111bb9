"""Items between server and worker, however the bytes are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from env_server import hop
from env_server.environment import Determinism, EnvironmentSpec, KnobSpec
from env_server.replay import ReplayOrder
from env_server.spec_json import spec_from_json, spec_to_json
from env_server.stage import StartOrder

ITEMS = st.lists(st.tuples(st.integers(1, 19), st.integers(0, 2**64 - 1), st.binary(max_size=300)), max_size=20)


@given(items=ITEMS, size=st.integers(1, 400))
def test_items_survive_any_cut_of_the_stream(items: list[tuple[int, int, bytes]], size: int) -> None:
    stream = b"".join(hop.pack(*item) for item in items)
    parser = hop.ItemParser()
    parsed = [item for start in range(0, len(stream), size) for item in parser.feed(stream[start : start + size])]
    assert parsed == items


@given(actions=st.lists(st.text()), seed=st.integers(0, 2**64 - 1))
def test_a_replay_order_survives_the_hop(actions: list[str], seed: int) -> None:
    start = StartOrder(environment="echo", task_id="echo/train/000000", seed=seed, knobs={"a": 1, "b": True, "c": "x"})
    order = ReplayOrder(start=start, actions=actions, hashes=[bytes([index % 256]) * 8 for index in range(3)])
    assert ReplayOrder.from_json(order.to_json()) == order


def test_a_spec_survives_the_hop() -> None:
    spec = EnvironmentSpec(
        name="echo",
        version="1",
        data_hash="d",
        action_format="a word",
        max_turns=3,
        knobs=(KnobSpec(name="mode", kind="choice", default="a", choices=("a", "b")),),
        determinism=Determinism.UP_TO_ORDER,
        splits=("train", "test"),
    )
    assert spec_from_json(spec_to_json(spec)) == spec
