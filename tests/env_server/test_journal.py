"""Journals in memory and their records on disk say the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from env_server.episode_records import EpisodeRecord, pack_failure, pack_turn, unpack_failure, unpack_turn
from env_server.journal import Journal
from env_server.start_request import ForkPoint, StartRequest, request_digest
from longturn.records import Task

TURNS = st.lists(st.tuples(st.text(max_size=50), st.binary(min_size=8, max_size=16)), max_size=20)
REQUEST = StartRequest(
    request_digest=request_digest("r" * 32),
    task=Task(environment="echo", task_id="echo/train/000000", knobs={"a": 1, "b": True, "c": "x", "d": 0.5}),
    seed=2**64 - 1,
    max_turns=7,
    with_progress=True,
    with_oracle=False,
    client_id="pool\N{SNOWMAN}",
    fork=ForkPoint("source", 3),
)


def _journal(turns: list[tuple[str, bytes]]) -> Journal:
    journal = Journal(1, REQUEST, initial_hash=b"initial!")
    for action, state_hash in turns:
        journal.append_turn(action, state_hash, b"payload")
    return journal


@given(turns=TURNS, data=st.data())
def test_turns_come_back_as_they_went_in_and_any_prefix_does(
    turns: list[tuple[str, bytes]], data: st.DataObject
) -> None:
    journal = _journal(turns)
    assert list(journal.turns()) == turns
    at_turn = data.draw(st.integers(0, len(turns)))
    order = journal.replay_order(at_turn)
    assert list(zip(order.actions, order.hashes[1:], strict=True)) == turns[:at_turn]
    assert order.hashes[0] == b"initial!"
    copy = Journal(2, REQUEST, initial_hash=b"initial!", turns=journal.packed(at_turn), num_turns=at_turn)
    assert list(copy.turns()) == turns[:at_turn]
    copy.append_turn("another", b"hash5678", b"payload")
    assert list(copy.turns()) == [*turns[:at_turn], ("another", b"hash5678")]
    assert list(journal.turns()) == turns


@given(turns=TURNS, payloads=st.none() | st.lists(st.binary(max_size=20)).map(tuple), action=st.text())
def test_an_episode_survives_its_record(
    turns: list[tuple[str, bytes]], payloads: tuple[bytes, ...] | None, action: str
) -> None:
    record = EpisodeRecord(
        episode_id="episode",
        token_digest=b"\x00" * 32,
        request=REQUEST,
        environment_version="1",
        data_hash="d",
        max_turns=7,
        born_at_s=1.5,
        initial=b"\xff first",
        initial_hash=b"initial!",
        turns=_journal(turns).packed(),
        turn_index=len(turns),
        episode_return=0.1,
        last=b"last",
        reply=b"reply",
        answered_index=len(turns) - 1,
        answered_action=action,
        payloads=payloads,
    )
    assert EpisodeRecord.from_bytes(record.to_bytes()) == record


@given(turn_index=st.integers(0, 2**32 - 1), content=st.binary(), reason=st.text(), message=st.text())
def test_turns_and_failures_survive_their_records(turn_index: int, content: bytes, reason: str, message: str) -> None:
    assert unpack_turn(pack_turn(turn_index, content)) == (turn_index, content)
    assert unpack_failure(pack_failure(reason, message)) == (reason, message)
