"""How the engine starts, and the one line it says when it cannot."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from local_engine.config import EngineConfig
from local_engine.errors import StartError, UnsupportedModelError
from local_engine.model import load_model
from local_engine.serve import read_key
from longturn.metrics import Metrics
from tests.local_engine.engine_process import engine_command, engine_environment, serving_here


def start(folder: Path, **settings: Any) -> None:
    load_model(EngineConfig(model_path=folder, **settings), Metrics())


def test_a_missing_folder_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"engine\.model_path"):
        start(tmp_path / "nowhere")
    with pytest.raises(StartError, match=r"config\.json"):
        start(tmp_path)


def test_a_missing_tokenizer_names_the_way_out(tmp_path: Path, weights_root: Path) -> None:
    folder = shutil.copytree(weights_root / "v0", tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(StartError, match=r"engine\.skip_tokenizer_init"):
        start(folder)
    with serving_here(folder, skip_tokenizer_init=True) as client:
        assert "text" not in client.generate([5, 6], max_new_tokens=1)
        client.post("/generate", {"text": "w5"}, expect=400)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_file_of_the_model_is_named(tmp_path: Path, weights_root: Path, name: str, content: str) -> None:
    folder = shutil.copytree(weights_root / "v0", tmp_path / "model")
    (folder / name).write_text(content)
    with pytest.raises(StartError, match="restore it") as error:
        start(folder)
    assert str(folder / name) in str(error.value)


def test_an_end_token_that_is_none_is_named(tmp_path: Path, weights_root: Path) -> None:
    folder = shutil.copytree(weights_root / "v0", tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": "</s>"}))
    with pytest.raises(StartError, match="'</s>', which is no token id"):
        start(folder)


def test_a_checkpoint_in_a_dtype_that_is_not_computed_needs_a_word(tmp_path: Path, weights_root: Path) -> None:
    folder = shutil.copytree(weights_root / "v0", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
    with pytest.raises(StartError, match=r"float16.*engine\.dtype"):
        start(folder)
    start(folder, dtype="float32")


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path, weights_root: Path) -> None:
    folder = shutil.copytree(weights_root / "v0", tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["extra"] = 300
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(StartError, match="do not belong together"):
        start(folder)


def test_a_window_that_sglang_ignores_is_refused_with_the_reason(tmp_path: Path, weights_root: Path) -> None:
    folder = shutil.copytree(weights_root / "v0", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {"use_sliding_window": True, "sliding_window": 96, "layer_types": ["sliding_attention"] * 2}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match="SGLang ignores"):
        start(folder)


def test_too_small_or_too_large_a_memory_names_its_settings(weights_root: Path) -> None:
    with pytest.raises(StartError, match=r"engine\.max_total_tokens"):
        start(weights_root / "v0", max_total_tokens=5000)
    with pytest.raises(StartError, match=r"engine\.context_tokens"):
        start(weights_root / "v0", max_running_requests=10_000_000)
    with pytest.raises(StartError, match=r"engine\.context_tokens"):
        start(weights_root / "v0", context_tokens=9999)


def test_a_port_in_use_is_one_line(weights_root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = engine_command({"model_path": weights_root / "v0", "port": port})
        outcome = subprocess.run(command, env=engine_environment("key"), capture_output=True, text=True, timeout=90)
    assert outcome.returncode == 2
    assert outcome.stderr.splitlines()[-1].startswith("longturn: cannot listen")
    assert "engine.port" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_off_loopback_a_key_is_demanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LONGTURN_ENGINE_KEY", raising=False)
    with pytest.raises(StartError, match="LONGTURN_ENGINE_KEY"):
        read_key(EngineConfig(model_path=tmp_path, host="0.0.0.0"))
    (tmp_path / "key").write_text("from-file\n")
    assert read_key(EngineConfig(model_path=tmp_path, host="0.0.0.0", api_key_file=tmp_path / "key")) == "from-file"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_on_loopback_no_key_is_demanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.delenv("LONGTURN_ENGINE_KEY", raising=False)
    assert read_key(EngineConfig(model_path=tmp_path, host=host)) == ""


def test_help_and_dry_run_do_not_load_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; import typer; from local_engine.commands import engine; "
        "app = typer.Typer(); app.command()(engine); "
        f"result = CliRunner().invoke(app, ['--dry-run', '--set', 'model_path={tmp_path}']); "
        "assert result.exit_code == 0, result.output; assert 'port = 30000' in result.output, result.output; "
        "assert 'torch' not in sys.modules and 'aiohttp' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
