"""Tokens per CPU-second of the embedded engine against transformers' `generate` on multi-turn work.

Each episode grows by a completion and an observation per turn. The engine is a real process that is asked over loopback
HTTP and keeps prefixes; `generate` gets one padded batch per turn and computes every context anew, in float32 with
sampling, as a trainer without an engine would. Both sides use one thread and random weights of the quickstart's size.

    OMP_NUM_THREADS=1 python benchmarks/bench_engine.py [--output FILE.md]
"""

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import torch
import transformers

PROMPT_TOKENS = 40
OBSERVATION_TOKENS = 16
COMPLETION_TOKENS = 12
VOCAB_SIZE = 1536
READY_DEADLINE_S = 120.0


def build_model(folder: Path, num_kv_heads: int) -> Any:
    """A Qwen2 model of 0.4 M parameters, saved to `folder`."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=num_kv_heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    return model


def new_tokens(num: int, draws: random.Random) -> list[int]:
    """Random ids that are no special token."""
    return [draws.randrange(2, VOCAB_SIZE) for _ in range(num)]


def run_generate(model: Any, num_episodes: int, num_turns: int) -> float:
    """CPU seconds of transformers on the whole work."""
    draws = random.Random(0)
    contexts = [new_tokens(PROMPT_TOKENS, draws) for _ in range(num_episodes)]
    started_s = time.process_time()
    for _ in range(num_turns):
        output = model.generate(
            torch.tensor(contexts),
            attention_mask=torch.ones(num_episodes, len(contexts[0]), dtype=torch.long),
            do_sample=True,
            top_k=0,
            max_new_tokens=COMPLETION_TOKENS,
            min_new_tokens=COMPLETION_TOKENS,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        contexts = [row + new_tokens(OBSERVATION_TOKENS, draws) for row in output.sequences.tolist()]
    return time.process_time() - started_s


async def play_episode(session: aiohttp.ClientSession, url: str, episode: int, num_turns: int) -> None:
    """All turns of one episode."""
    draws = random.Random(episode)
    context = new_tokens(PROMPT_TOKENS, draws)
    sampling = {"max_new_tokens": COMPLETION_TOKENS, "ignore_eos": True}
    for _ in range(num_turns):
        body = {"input_ids": context, "sampling_params": sampling, "return_logprob": True}
        async with session.post(f"{url}/generate", data=json.dumps(body)) as response:
            reply = await response.json()
        context = context + reply["output_ids"] + new_tokens(OBSERVATION_TOKENS, draws)


async def run_episodes(url: str, num_episodes: int, num_turns: int) -> None:
    """All episodes at once."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(play_episode(session, url, episode, num_turns) for episode in range(num_episodes)))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_engine(folder: Path, num_episodes: int, num_turns: int) -> float:
    """CPU seconds of the engine process on the whole work, HTTP included, start excluded."""
    ready = folder / "ready.json"
    settings = {"model_path": folder, "port": 0, "skip_tokenizer_init": "true", "max_running_requests": num_episodes}
    overrides = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "local_engine", *overrides, "--ready-file", str(ready)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "LONGTURN_ENGINE_KEY": ""}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + READY_DEADLINE_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError("the engine did not start")
            time.sleep(0.05)
        before_s = cpu_seconds(process.pid)
        asyncio.run(run_episodes(json.loads(ready.read_text(encoding="utf-8"))["url"], num_episodes, num_turns))
        return cpu_seconds(process.pid) - before_s
    finally:
        process.terminate()
        process.wait(timeout=20)
        ready.unlink(missing_ok=True)


def rows(num_episodes: int, num_kv_heads: int, all_turns: Sequence[int]) -> Iterator[str]:
    """The lines of a markdown table, each as soon as it is measured."""
    yield f"{num_episodes} episodes at once, {num_kv_heads} of 4 heads hold keys and values, float32, 1 thread"
    yield ""
    yield "| turns | engine over HTTP, tok/cpu-s | transformers generate, tok/cpu-s | ratio |"
    yield "|---|---|---|---|"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = build_model(folder, num_kv_heads)
        for num_turns in all_turns:
            num_tokens = num_episodes * num_turns * COMPLETION_TOKENS
            engine = num_tokens / run_engine(folder, num_episodes, num_turns)
            generate = num_tokens / run_generate(model, num_episodes, num_turns)
            yield f"| {num_turns} | {engine:.0f} | {generate:.0f} | {engine / generate:.1f} |"


def main() -> None:
    """Measure, print markdown, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--turns", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="markdown file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    lines = [
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__},"
        f" load average {os.getloadavg()[0]:.1f} at the start.",
        "",
    ]
    print("\n".join(lines))
    for line in rows(options.episodes, options.kv_heads, options.turns):
        print(line, flush=True)
        lines.append(line)
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
