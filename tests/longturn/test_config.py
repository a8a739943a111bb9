"""Settings are typed, and a wrong one is named together with what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field

from longturn.config import Config, Tree, apply_override, config_digest, dump_config, load_config, spell_override
from longturn.errors import ConfigError


class _Inner(Config):
    """How old data may be."""

    max_policy_lag: int = Field(default=1, ge=0)
    """Batches that groups may run ahead."""


class _Outer(Config):
    port: int = 0
    name: str = "a"
    staleness: _Inner = _Inner()
    metrics_port: int | None = None
    """Port of /metrics; absent: none."""
    limits: dict[str, _Inner] = Field(default_factory=dict)
    engines: tuple[_Inner, ...] = ()


def _load(text: str, path: Path, *overrides: str) -> _Outer:
    file = path / "config.toml"
    file.write_text(text, encoding="utf-8")
    return load_config(_Outer, table="learner", path=file, overrides=overrides)


def test_a_daemon_reads_its_own_table_and_ignores_the_others(tmp_path: Path) -> None:
    config = _load("[learner]\nport = 7\n[engine]\nanything = 1\n", tmp_path)
    assert config.port == 7


def test_overrides_win_and_may_start_with_the_table(tmp_path: Path) -> None:
    config = _load("[learner]\nport = 7\n", tmp_path, "port=8", "learner.staleness.max_policy_lag=3", "name=b c")
    assert (config.port, config.staleness.max_policy_lag, config.name) == (8, 3, "b c")


def test_an_unknown_setting_names_the_nearest_known_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learner\.staleness\.max_policy_lags.*max_policy_lag"):
        _load("[learner.staleness]\nmax_policy_lags = 2\n", tmp_path)


def test_a_value_out_of_range_names_its_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learner\.staleness\.max_policy_lag: .*greater than or equal to 0"):
        _load("[learner.staleness]\nmax_policy_lag = -1\n", tmp_path)


def test_a_missing_file_says_how_to_give_another() -> None:
    with pytest.raises(ConfigError, match="--config"):
        load_config(_Outer, table="learner", path=Path("nowhere.toml"))


def test_broken_toml_is_reported_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not valid TOML.*line 1"):
        _load("[learner\n", tmp_path)


def test_an_override_without_a_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name=value"):
        _load("", tmp_path, "port")


@pytest.mark.parametrize("override", ["learner.port", "port=1", ".port=1", "learner..port=1", "=1"])
def test_an_override_of_a_whole_document_names_a_table(override: str) -> None:
    with pytest.raises(ConfigError, match=r"has not the form table\.name=value"):
        apply_override({}, override)


@pytest.mark.parametrize("table", ["", "learner"])
def test_an_override_below_a_value_is_refused(table: str) -> None:
    tree: Tree = {"port": 1} if table else {"learner": {"port": 1}}
    with pytest.raises(ConfigError, match="port is a value, not a table"):
        apply_override(tree, "learner.port.high=2", table=table)


@pytest.mark.parametrize(
    "value",
    [
        3,
        0.5,
        True,
        "true",
        "3",
        'it\'s "quoted" \\n',
        "line\nfeed",
        "\N{ROCKET}",
        ["a", "b=c"],
        [{"url": "http://h:1", "file": "/a b"}],
    ],
)
def test_an_override_is_read_as_it_was_meant(value: object) -> None:
    tree: Tree = {}
    apply_override(tree, spell_override("act.a.b", value))
    assert tree == {"act": {"a": {"b": value}}}


def test_a_path_is_spelt_as_its_text() -> None:
    tree: Tree = {}
    apply_override(tree, spell_override("folder", Path("/tmp/\N{ROCKET} it's")), table="act")
    assert tree == {"folder": "/tmp/\N{ROCKET} it's"}


def test_a_dump_loads_to_the_same_settings(tmp_path: Path) -> None:
    overrides = ("port=9", 'name="two\\nlines"', "staleness.max_policy_lag=2", 'limits={"a b"={max_policy_lag=3}}')
    config = _load("", tmp_path, *overrides, "engines=[{max_policy_lag=4}, {}]")
    assert _load(dump_config(config, table="learner"), tmp_path) == config


def test_a_dump_says_what_each_setting_means() -> None:
    text = dump_config(_Outer(), table="learner")
    assert "# How old data may be.\n[learner.staleness]\n# Batches that groups may run ahead.\nmax_policy" in text
    assert "# Port of /metrics; absent: none.\n# metrics_port is not set\n" in text


def test_the_digest_changes_with_any_value() -> None:
    assert config_digest(_Outer()) == config_digest(_Outer())
    assert config_digest(_Outer()) != config_digest(_Outer(staleness=_Inner(max_policy_lag=2)))
