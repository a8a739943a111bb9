"""Weights reach engines over real HTTP, and only confirmed ones are in rotation."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from learner.checkpoint_files import verify
from learner.engine_client import DiskTransport, EngineClient, EngineError, Target, Transport, UpdateRules
from learner.engines import EngineRegistry
from learner.ledger.schema import LedgerError
from learner.publisher import Publisher
from local_engine.config import EngineConfig
from longturn.config import load_config
from longturn.errors import UnreachableError
from longturn.metrics import Metrics
from longturn.status import StatusBoard
from tests.support.learner_run import LearnerThread, audited, small_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_pool import ScriptedPool, made_up


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine()
    yield engine
    engine.close()


class News:
    """What the registry told, and a way to wait for it."""

    def __init__(self) -> None:
        self.told: list[tuple[int, list[str]]] = []
        self._changed = threading.Condition()

    def __call__(self, target: Target, rotation: list[EngineClient]) -> None:
        with self._changed:
            self.told.append((target.policy_version, [client.url for client in rotation]))
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.told) >= count, timeout=20)


def registry_of(
    *clients: EngineClient,
    news: Callable[[Target, list[EngineClient]], None] | None = None,
    on_lost: Callable[[EngineClient], None] | None = None,
    timeout_s: float = 5.0,
    check_interval_s: float = 0.05,
    pause_mode: str = "retract",
    transport: Transport | None = None,
) -> EngineRegistry:
    rules = UpdateRules(
        pause_mode=pause_mode, flush_cache=True, timeout_s=timeout_s, transport=transport or DiskTransport()
    )
    return EngineRegistry(
        list(clients),
        rules,
        check_interval_s=check_interval_s,
        on_change=news or News(),
        on_lost=on_lost or (lambda client: None),
    )


def target(version: int, *, cache_salt: str = "") -> Target:
    folder = Path("/weights") / f"v{version:06d}"
    return Target(policy_version=version, training_step=version, folder=folder, cache_salt=cache_salt)


def test_a_load_pauses_updates_continues_and_is_confirmed(engine: ScriptedEngine) -> None:
    registry = registry_of(EngineClient(engine.url))
    confirmed = registry.publish(target(3), timeout_s=20)
    registry.close()
    assert [client.url for client in confirmed] == [engine.url]
    paths = [path for path, _ in engine.calls]
    assert paths[0] == "/server_info"
    assert paths[1:5] == ["/pause_generation", "/update_weights_from_disk", "/continue_generation", "/model_info"]
    assert engine.calls[1][1] == {"mode": "retract"}
    assert engine.calls[2][1] == {"model_path": "/weights/v000003", "weight_version": "3", "flush_cache": True}


def test_a_refused_load_continues_the_engine_and_is_tried_again(engine: ScriptedEngine) -> None:
    engine.fail_loads = 1
    registry = registry_of(EngineClient(engine.url))
    assert registry.publish(target(1), timeout_s=20)
    registry.close()
    paths = [path for path, _ in engine.calls]
    assert paths[1:4] == ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]
    assert engine.weight_version == "1"


@pytest.mark.parametrize(
    ("info", "pause_mode", "cache_salt", "mend"),
    [
        ({"version": "1"}, "retract", "", "use SGLang >= 0.5.6 or `longturn engine`"),
        ({"version": "0.5.4", "internal_states": []}, "abort", "", "cannot pause by mode"),
        ({"version": "0.5.18", "internal_states": []}, "in_place", "", "learner.publish.pause_mode = abort"),
        ({"version": "0.5.12", "internal_states": []}, "abort", "v1", "learner.publish.cache_rule = flush"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_before_it_is_paused(
    engine: ScriptedEngine, info: dict[str, object], pause_mode: str, cache_salt: str, mend: str
) -> None:
    engine.info = info
    registry, wanted = registry_of(EngineClient(engine.url), pause_mode=pause_mode), target(1, cache_salt=cache_salt)
    while engine.url not in registry.failures:
        assert registry.publish(wanted, timeout_s=0.3) == []
    registry.close()
    assert mend in registry.failures[engine.url]
    assert "/pause_generation" not in [path for path, _ in engine.calls]


def test_an_old_engine_is_served_by_aborting(engine: ScriptedEngine) -> None:
    engine.info = {"version": "0.5.18", "internal_states": []}
    registry = registry_of(EngineClient(engine.url), pause_mode="abort")
    assert registry.publish(target(1), timeout_s=20)
    registry.close()


def test_an_engine_that_does_not_report_the_version_is_not_confirmed(engine: ScriptedEngine) -> None:
    engine.lie = True
    registry, wanted = registry_of(EngineClient(engine.url)), target(1)
    while engine.url not in registry.failures:
        assert registry.publish(wanted, timeout_s=0.3) == []
    assert "reports version default" in registry.failures[engine.url]
    registry.close()


@pytest.mark.parametrize("content", [[], "ok", 1, True])
def test_an_answer_that_is_no_object_confirms_nothing(engine: ScriptedEngine, content: object) -> None:
    engine.content = content
    with pytest.raises(EngineError, match="is no JSON object"):
        EngineClient(engine.url).load(
            target(1), UpdateRules(pause_mode="retract", flush_cache=True, timeout_s=20, transport=DiskTransport())
        )


def test_a_dead_engine_does_not_hold_up_a_living_one(engine: ScriptedEngine) -> None:
    dead = ScriptedEngine()
    dead.close()
    registry = registry_of(EngineClient(engine.url), EngineClient(dead.url))
    assert [client.url for client in registry.publish(target(1), timeout_s=60)] == [engine.url]
    registry.close()


def test_an_engine_that_restarts_is_loaded_again_before_it_is_announced() -> None:
    news, first = News(), ScriptedEngine()
    registry = registry_of(EngineClient(first.url), news=news)
    assert registry.publish(target(4), timeout_s=20)
    first.close()
    news.wait_for(1)
    second = ScriptedEngine(port=first.port)
    news.wait_for(2)
    registry.close()
    second.close()
    assert news.told == [(4, []), (4, [second.url])]
    assert second.weight_version == "4"


def test_an_engine_that_breaks_off_its_answers_is_lost_and_kept_on_trying(engine: ScriptedEngine) -> None:
    lost: list[str] = []
    is_lost = threading.Event()

    def on_lost(client: EngineClient) -> None:
        lost.append(client.url)
        is_lost.set()

    engine.cut_short = True
    registry = registry_of(EngineClient(engine.url), on_lost=on_lost)
    assert registry.publish(target(1), timeout_s=0.3) == []
    assert is_lost.wait(20)
    assert "IncompleteRead" in registry.failures[engine.url]
    engine.cut_short = False
    assert registry.publish(target(2), timeout_s=20)
    registry.close()
    assert set(lost) == {engine.url}


def test_an_engine_lost_while_weights_are_published_is_told_of() -> None:
    told = threading.Event()
    engine = ScriptedEngine()
    registry = registry_of(EngineClient(engine.url), on_lost=lambda client: told.set(), check_interval_s=60.0)
    assert registry.publish(target(1), timeout_s=20)
    engine.close()
    assert registry.publish(target(2), timeout_s=0.1) == []
    assert told.wait(20)
    registry.close()


def test_what_ends_a_keeper_is_raised_by_the_next_publish(engine: ScriptedEngine) -> None:
    def refuse(client: EngineClient) -> None:
        raise LedgerError("the ledger cannot be written")

    engine.cut_short = True
    registry = registry_of(EngineClient(engine.url), on_lost=refuse)
    for version in (1, 2):
        with pytest.raises(LedgerError, match="cannot be written"):
            registry.publish(target(version), timeout_s=20)
    registry.close()


def test_a_rotation_that_cannot_be_announced_is_raised_by_the_next_publish() -> None:
    is_lost = threading.Event()

    def refuse(target: Target, rotation: list[EngineClient]) -> None:
        is_lost.set()
        raise LedgerError("the ledger cannot be written")

    engine = ScriptedEngine()
    registry = registry_of(EngineClient(engine.url), news=refuse)
    assert registry.publish(target(1), timeout_s=20)
    engine.close()
    assert is_lost.wait(20)
    with pytest.raises(LedgerError, match="cannot be written"):
        registry.publish(target(2), timeout_s=20)
    registry.close()


def test_a_refusing_engine_is_not_driven_by_those_who_wait_for_it(engine: ScriptedEngine) -> None:
    other = ScriptedEngine()
    for refusing in (engine, other):
        refusing.fail_loads = 1000
    registry = registry_of(EngineClient(engine.url), EngineClient(other.url), check_interval_s=60.0)
    wanted = target(1)
    for _ in range(20):
        assert registry.publish(wanted, timeout_s=0.05) == []
    assert all("out of memory" in error for error in registry.failures.values())
    registry.close()
    for refusing in (engine, other):
        assert [path for path, _ in refusing.calls].count("/pause_generation") == 1
    other.close()


def test_a_key_is_presented(engine: ScriptedEngine) -> None:
    guarded = ScriptedEngine(api_key="secret")
    registry = registry_of(EngineClient(guarded.url, "secret"))
    assert registry.publish(target(1), timeout_s=20)
    registry.close()
    guarded.close()


def publisher_of(tmp_path: Path, registry: EngineRegistry, *, keep: int = 2) -> Publisher:
    def save_model(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"weights")

    board = StatusBoard("learner", Metrics())
    return Publisher(
        tmp_path,
        registry,
        save_model=save_model,
        require_engine=True,
        keep=keep,
        board=board,
        check_stop=lambda: None,
    )


def test_weight_folders_are_sealed_and_old_ones_pruned(tmp_path: Path, engine: ScriptedEngine) -> None:
    registry = registry_of(EngineClient(engine.url))
    publisher = publisher_of(tmp_path, registry)
    (tmp_path / ".v000000.partial").mkdir()
    for version in range(4):
        assert publisher.publish(version, version, timeout_s=20).is_announced
    registry.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v000002", "v000003"]
    verify(tmp_path / "v000003")


def test_without_an_engine_in_time_nothing_is_announced(tmp_path: Path) -> None:
    dead = ScriptedEngine()
    dead.close()
    registry = registry_of(EngineClient(dead.url))
    published = publisher_of(tmp_path, registry).publish(0, 0, timeout_s=0.3)
    registry.close()
    assert not published.is_announced
    assert published.confirmed == ()


def test_a_run_waits_for_its_engine_and_gives_up_with_the_command_to_start_one(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    dead = ScriptedEngine()
    dead.close()
    publish = {
        "require_engine": True,
        "engines": [{"url": dead.url}],
        "connect_timeout_s": 0.5,
        "check_interval_s": 0.1,
    }
    config = small_config(tmp_path / "run", model_dir, task_path, publish=publish)
    with pytest.raises(UnreachableError, match=r"Connection refused.*longturn engine") as error:
        LearnerThread(config).join()
    options = re.findall(r"--set (\w+)=(\S+?)[\s`]", str(error.value))
    engine = load_config(EngineConfig, table="engine", overrides=[f"{name}={value}" for name, value in options])
    assert engine.weights_root == config.run_dir.resolve() / "weights"
    for setting in ("learner.publish.engines", "learner.publish.connect_timeout_s"):
        assert setting in str(error.value)


def test_a_run_survives_an_engine_that_restarts(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    engines = [ScriptedEngine()]
    publish = {"require_engine": True, "engines": [{"url": engines[0].url}], "check_interval_s": 0.1}
    config = small_config(tmp_path / "run", model_dir, task_path, publish=publish)

    def restart_once(member: object) -> object:
        if len(engines) == 1:
            engines[0].close()
            engines.append(ScriptedEngine(port=engines[0].port))
        return made_up(member)  # type: ignore[arg-type]

    with ScriptedPool(config.dispatch_address, script=restart_once) as pool:  # type: ignore[arg-type]
        assert LearnerThread(config).join() == "COMPLETED"
    engines[-1].close()
    assert engines[-1].weight_version == "3"
    assert pool.announced[-1] == 3
    audited(config.run_dir)
