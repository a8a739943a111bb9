"""`longturn learn` as a user meets it before anything runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from learner.config import LearnConfig
from longturn.config import dump_config, load_config
from longturn.errors import ConfigError
from tests.support.learner_run import small_config, train_with_pool
from tests.support.scripted_pool import GiveUp, ScriptedPool

ROOT = Path(__file__).parents[2]


def learn(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "learner", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100
    )


def test_commands_load_no_torch() -> None:
    code = "import sys, learner.commands, learner.ledger.audit; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0


def test_a_dry_run_prints_all_settings() -> None:
    done = learn("--dry-run", "--set", "batch.max_policy_lag=0", "--set", "learner.seed=4")
    assert done.returncode == 0
    assert "max_policy_lag = 0" in done.stdout
    assert "seed = 4" in done.stdout


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("batch.group_sise=4", "did you mean group_size"),
        ("publish.pause_mode=in_place", "cache_rule = keep"),
        ("off_policy.mode=none", "accept_bias"),
        ("evaluation.every=3", "evaluation.path"),
        ("advantage.estimator=grop", "'grpo', 'dr_grpo', 'rloo'"),
        ("ppo.loss=gspo", "set ppo.aggregation = seq_mean_token_mean"),
        ("play.max_episode_tokens=8190", "at least 3 below model.max_row_tokens"),
    ],
)
def test_a_wrong_setting_is_one_line_that_mends_it(setting: str, message: str) -> None:
    done = learn("--dry-run", "--set", setting)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--resume", "--ready-file"])
def test_imitation_refuses_what_only_training_has(option: str) -> None:
    done = learn("--imitate", "x.bin", option, "auto")
    assert done.returncode == 2
    assert f"{option} would do nothing" in done.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"path": Path("nowhere")}}, "longturn warmstart"),
        ({"dispatch": {"address": "tcp://0.0.0.0:4000"}}, "leaves this machine"),
        ({"tasks": {"path": Path("nowhere.jsonl")}}, "longturn envs tasks"),
        ({"play": {"max_episode_tokens": 8000}}, "the model reads at most 4096"),
        ({"publish": {"require_engine": True}}, "name at least one engine"),
        ({"reference": {"kl": "loss", "path": Path("nowhere")}}, "learner.reference.path"),
    ],
)
def test_what_a_user_can_get_wrong_at_the_start_names_what_mends_it(
    tmp_path: Path, model_dir: Path, task_path: Path, changes: dict[str, dict[str, object]], message: str
) -> None:
    from learner.session import learn as run_learner

    config = small_config(tmp_path / "run", model_dir, task_path, **changes)
    with pytest.raises(ConfigError, match=message):
        run_learner(config, resume="auto", ready_file=None)


def test_a_run_whose_groups_all_fail_ends_with_an_error_that_says_how_to_go_on(
    tmp_path: Path, model_dir: Path, task_path: Path
) -> None:
    config = small_config(tmp_path / "run", model_dir, task_path, stop={"max_skipped_in_a_row": 2})
    path = tmp_path / "run.toml"
    path.write_text(dump_config(config, table="learner"), encoding="utf-8")
    with ScriptedPool(config.dispatch_address, script=lambda member: GiveUp(reason="ENVIRONMENT_LOST")):
        done = learn("--config", str(path))
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert "the run ended with NO_GROUPS: learner.stop.max_skipped_in_a_row = 2" in last
    summary = json.loads((config.run_dir / "learner_summary.json").read_text())
    assert (summary["reason"], summary["trained_turns_mean"]) == ("NO_GROUPS", None)
    assert str(path) in last
    flag, advised = last[last.index("--set") :].split()
    assert flag == "--set"
    mended = load_config(LearnConfig, table="learner", path=path, overrides=[advised])
    assert train_with_pool(mended)[0] == "COMPLETED"
    assert json.loads((config.run_dir / "learner_summary.json").read_text())["reason"] == "COMPLETED"


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path, model_dir: Path, task_path: Path) -> None:
    from learner.session import learn as run_learner

    folder = tmp_path / "model"
    shutil.copytree(model_dir, folder)
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(
        text.replace('"w1":1,', '"w1":1,"more":99,').replace('"w1": 1,', '"w1": 1, "more": 99,')
    )
    with pytest.raises(ConfigError, match="do not belong together"):
        run_learner(small_config(tmp_path / "run", folder, task_path), resume="auto", ready_file=None)


@pytest.mark.parametrize("content", [None, "{"])
def test_a_tokenizer_that_cannot_be_read_is_named_with_its_setting(
    tmp_path: Path, model_dir: Path, task_path: Path, content: str | None
) -> None:
    from learner.session import learn as run_learner

    folder = tmp_path / "model"
    shutil.copytree(model_dir, folder)
    (folder / "tokenizer.json").unlink()
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizer\.json") as error:
        run_learner(small_config(tmp_path / "run", folder, task_path), resume="auto", ready_file=None)
    assert "learner.model.path" in str(error.value)
