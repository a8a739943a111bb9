"""What each rule for cached prefixes of old weights costs in mismatch, on an engine that runs.

Episodes of several turns; before every turn all weights move a little and are loaded. For each rule: how far the
engine's logprobs lie from transformers' under the version that each token carries, and which share of the prompts came
from the cache.

    python benchmarks/bench_cache_rules.py --url http://127.0.0.1:30000 --model FOLDER [--key KEY] [--output FILE.md]

FOLDER is the model that the engine serves; a float32 engine shows the rules' cost alone.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers

from learner.engine_client import DiskTransport, EngineClient, Target, UpdateRules

NUM_EPISODES = 8
NUM_TURNS = 8
PROMPT_TOKENS = 60
OBSERVATION_TOKENS = 24
COMPLETION_TOKENS = 12
RULES = ("flush", "salt", "keep")


def moved(model: Any, relative: float, seed: int) -> None:
    """Move every weight by noise of this size, relative to its tensor's own spread."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=noise) * weight.std() * relative)


def completion(url: str, key: str, ids: list[int], salt: str) -> dict[str, Any]:
    """One turn."""
    body: dict[str, Any] = {
        "input_ids": ids,
        "return_logprob": True,
        "sampling_params": {"max_new_tokens": COMPLETION_TOKENS, "ignore_eos": True},
    }
    if salt:
        body["cache_salt"] = salt
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/generate", data=json.dumps(body).encode(), headers=headers)
    with urllib.request.urlopen(request, timeout=120.0) as response:
        return json.loads(response.read())


@torch.inference_mode()
def distance(model: Any, prompt: list[int], reply: dict[str, Any]) -> list[float]:
    """Nats between the engine's logprobs and those of the weights that it says it used."""
    triples = reply["meta_info"]["output_token_logprobs"]
    ids = prompt + [token_id for _, token_id, _ in triples]
    table = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    start = len(prompt) - 1
    return [abs(value - float(table[start + index, token])) for index, (value, token, _) in enumerate(triples)]


def measure(options: argparse.Namespace, rule: str, first_version: int, scratch: Path) -> tuple[float, float, float]:
    """Mean and largest distance, and the cached share of the prompts."""
    engine = EngineClient(options.url, options.key)
    rules = UpdateRules(pause_mode="retract", flush_cache=rule == "flush", timeout_s=120.0, transport=DiskTransport())
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    vocabulary = model.config.vocab_size - 1
    draws = random.Random(0)
    contexts = [[draws.randrange(2, vocabulary) for _ in range(PROMPT_TOKENS)] for _ in range(NUM_EPISODES)]
    distances: list[float] = []
    num_cached = num_prompt = 0
    with ThreadPoolExecutor(max_workers=NUM_EPISODES) as threads:
        for turn in range(NUM_TURNS):
            version = first_version + turn
            moved(model, options.move, seed=turn)
            folder = scratch / f"v{version}"
            model.save_pretrained(folder)
            target = Target(policy_version=version, training_step=turn, folder=folder)
            engine.load(target, rules)
            salt = f"v{version}" if rule == "salt" else ""
            replies = list(threads.map(lambda ids: completion(options.url, options.key, ids, salt), contexts))  # noqa: B023
            for ids, reply in zip(contexts, replies, strict=True):
                distances += distance(model, ids, reply)
                num_cached += reply["meta_info"]["cached_tokens"]
                num_prompt += len(ids)
                ids += reply["output_ids"]
                ids += [draws.randrange(2, vocabulary) for _ in range(OBSERVATION_TOKENS)]
    return sum(distances) / len(distances), max(distances), num_cached / num_prompt


def main() -> None:
    """Measure all rules, print a table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--key", default="")
    parser.add_argument("--move", type=float, default=0.01, help="noise per update, relative to each tensor's spread")
    parser.add_argument("--output", type=Path, help="markdown file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    facts = EngineClient(options.url, options.key).facts(timeout_s=30.0)
    lines = [
        f"{facts.name} {facts.version}: {NUM_EPISODES} episodes of {NUM_TURNS} turns, an update of {options.move:g}"
        " before each turn",
        "",
        "| cache_rule | mean abs. distance, nats | largest | prompt tokens from the cache |",
        "|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        for index, rule in enumerate(RULES):
            mean, largest, share = measure(options, rule, 1000 * (index + 1), Path(scratch))
            lines.append(f"| {rule} | {mean:.2e} | {largest:.2e} | {share:.0%} |")
    print("\n".join(lines))
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
