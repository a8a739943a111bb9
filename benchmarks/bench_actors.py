"""What the actor pool costs and how full it keeps its engine, over real processes and sockets.

Three questions, each on the echo environment: tokens and episodes per second with 1, 16, 64 and 256 episodes at once,
and the pool's own CPU per turn; the share of prompt tokens that the engine takes from its cache over episodes of thirty
turns; and the wall time to the same number of trained groups with episodes of heavy-tailed length, asynchronous against
synchronous. The learner is a loop here that assigns by the run's admission rule and sleeps where training would be.

    OMP_NUM_THREADS=1 python benchmarks/bench_actors.py [--only throughput,cache,asynchrony] [--output FILE.md]
    OMP_NUM_THREADS=1 python benchmarks/bench_actors.py --engine-url http://127.0.0.1:30000 --model FOLDER [--key KEY]

Without --engine-url an embedded engine serves random weights of the quickstart's size. FOLDER is what the engine at the
address serves; its tokenizer needs the plain tags.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from longturn.codec import task_to_proto, trajectory_from_bytes
from longturn.dispatch import PROTOCOL_VERSION, Body, DispatchRouter
from longturn.records import Task, Trajectory
from longturn.tag_format import TAGS
from longturn.v1 import dispatch_pb2

READY_DEADLINE_S = 180.0
RUN_DEADLINE_S = 900.0
MAX_NEW_TOKENS = 18
TURNS = 10
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a run plays: groups in batches, by the admission rule."""

    horizons: Sequence[int]
    """Turns of each group's episodes."""
    num_actors: int
    group_size: int = 1
    groups_per_step: int
    max_policy_lag: int
    train_s: float = 0.0
    step_sleep_ms: float = 0.0
    observation_bytes: int = 200
    max_new_tokens: int = MAX_NEW_TOKENS

    def assignment(self, slot: int) -> dispatch_pb2.GroupAssignment:
        """The group of a slot."""
        knobs = {
            "horizon": self.horizons[slot],
            "step_sleep_ms": self.step_sleep_ms,
            "observation_bytes": self.observation_bytes,
        }
        return dispatch_pb2.GroupAssignment(
            group_id=f"t{slot:06d}",
            task=task_to_proto(Task(environment="echo", task_id=f"echo/train/{slot:06d}", knobs=knobs)),
            member_indices=range(self.group_size),
            sampling_seeds=range(slot * self.group_size, (slot + 1) * self.group_size),
            purpose=dispatch_pb2.PURPOSE_TRAIN,
            group_size=self.group_size,
            task_kind="echo",
        )


@dataclass(kw_only=True)
class Outcome:
    """What a run left."""

    wall_s: float
    pool_cpu_s: float
    trajectories: list[Trajectory] = field(default_factory=list)

    @property
    def num_turns(self) -> int:
        return sum(len(item.turns) for item in self.trajectories)

    @property
    def num_tokens(self) -> int:
        return sum(item.num_completion_tokens for item in self.trajectories)

    @property
    def cached_share(self) -> float:
        """Share of all prompt tokens that the engine took from its cache."""
        num_prompt = num_cached = 0
        for item in self.trajectories:
            history = 0
            for turn in item.turns:
                history += len(turn.prompt_ids)
                num_prompt += history
                num_cached += turn.timings.cached_tokens
                history += len(turn.completion_ids)
        return num_cached / num_prompt


class Learner:
    """Hands out slots by the admission rule, consumes batches in order, and sleeps instead of training."""

    def __init__(self, work: Work, endpoint: dispatch_pb2.EngineEndpoint, pool: subprocess.Popen[bytes]) -> None:
        self._work = work
        self._endpoint = endpoint
        self._pool = pool
        self._missing = {slot: set(range(work.group_size)) for slot in range(len(work.horizons))}
        self._next_slot = 0
        self._num_consumed = 0
        self._trained_at_s: float | None = None
        self._free = 0
        self.trajectories: list[Trajectory] = []

    def run(self, router: DispatchRouter) -> Outcome:
        """Until the last batch is trained."""
        peer, started_s, cpu_s = b"", 0.0, 0.0
        deadline_s = time.monotonic() + RUN_DEADLINE_S
        while self._num_consumed * self._work.groups_per_step < len(self._work.horizons):
            if time.monotonic() > deadline_s or self._pool.poll() is not None:
                raise SystemExit("the pool ended or did not finish in time; see its log")
            for message in router.receive(0.02):
                peer = message.peer
                for body in self._answers(message.body):
                    router.send(peer, body)
            self._train()
            if peer:
                assigned = self._assign()
                if assigned and not started_s:
                    started_s, cpu_s = time.monotonic(), cpu_of(self._pool.pid)
                for body in assigned:
                    router.send(peer, body)
        outcome = Outcome(
            wall_s=time.monotonic() - started_s,
            pool_cpu_s=cpu_of(self._pool.pid) - cpu_s,
            trajectories=self.trajectories,
        )
        router.send(peer, dispatch_pb2.EndOfRun(reason="COMPLETED"))
        self._pool.wait(30)
        return outcome

    def _answers(self, body: Body) -> list[Body]:
        match body:
            case dispatch_pb2.Hello():
                rules = dispatch_pb2.PlayRules(
                    temperature=1.0, max_new_tokens=self._work.max_new_tokens, max_member_retries=2
                )
                welcome = dispatch_pb2.Welcome(
                    run_id="bench",
                    run_epoch=1,
                    protocol_version=PROTOCOL_VERSION,
                    engines=[self._endpoint],
                    rules=rules,
                    heartbeat_s=2.0,
                )
                return [welcome]
            case dispatch_pb2.GroupRequest():
                self._free = body.free_actors
            case dispatch_pb2.SubmitTrajectory():
                self.trajectories.append(trajectory_from_bytes(body.trajectory))
                self._missing[int(body.identity.group_id[1:])].discard(body.identity.member_index)
                return [dispatch_pb2.Ack(identity=body.identity, verdict=dispatch_pb2.ACK_VERDICT_ACCEPTED)]
            case dispatch_pb2.GroupFailed():
                raise SystemExit(f"group {body.group_id} failed: {body.reason} {body.message}")
            case dispatch_pb2.Heartbeat():
                return [dispatch_pb2.Heartbeat(run_epoch=1)]
            case _:
                pass
        return []

    def _assign(self) -> list[Body]:
        work, given = self._work, list[Body]()
        below = (self._num_consumed + work.max_policy_lag + 1) * work.groups_per_step
        while self._next_slot < min(below, len(work.horizons)) and self._free >= work.group_size:
            given.append(work.assignment(self._next_slot))
            self._next_slot += 1
            self._free -= work.group_size
        return given

    def _train(self) -> None:
        """Begin to train the next batch once it is complete; consume it when that is over."""
        size = self._work.groups_per_step
        first = self._num_consumed * size
        if self._trained_at_s is None:
            slots = range(first, min(first + size, len(self._work.horizons)))
            if not any(self._missing[slot] for slot in slots):
                self._trained_at_s = time.monotonic() + self._work.train_s
        if self._trained_at_s is not None and time.monotonic() >= self._trained_at_s:
            self._num_consumed += 1
            self._trained_at_s = None


def cpu_of(pid: int) -> float:
    """CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


PROFILED = """
import cProfile, pstats, sys, time
from longturn.cli import main
profile = cProfile.Profile(time.process_time)
try:
    profile.runcall(main)
finally:
    with open({path!r}, "w") as file:
        pstats.Stats(profile, stream=file).sort_stats("tottime").print_stats(45)
"""


@contextlib.contextmanager
def daemon(
    words: Sequence[object], folder: Path, name: str, *, profile: Path | None = None
) -> Iterator[dict[str, object]]:
    """A daemon of ours until the block ends; what its ready file says, and its process under `process`."""
    ready = folder / f"{name}-{time.monotonic_ns()}.json"
    start = ["-m", "longturn"] if profile is None else ["-c", PROFILED.format(path=str(profile.resolve()))]
    command = [sys.executable, *start, *map(str, words), "--ready-file", str(ready)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "LONGTURN_ENGINE_KEY": "bench"}
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        deadline_s = time.monotonic() + READY_DEADLINE_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(f"{name} did not start: {(folder / f'{name}.log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield {**json.loads(ready.read_text()), "process": process}
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def write_policy(folder: Path) -> None:
    """Random weights of the quickstart's size, and a tokenizer with a token per byte and the five tags."""
    import torch  # only where no engine was given
    import transformers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(tag, special=True, normalized=False) for tag in TAGS])
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=1536,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=16384,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


@dataclass(frozen=True, kw_only=True)
class Stand:
    """What every run stands on."""

    folder: Path
    env_address: str
    engine: dispatch_pb2.EngineEndpoint
    tokenizer: Path
    profile: Path | None

    def run(self, work: Work) -> Outcome:
        """Play some work with a pool of its own."""
        folder = self.folder / f"run-{time.monotonic_ns()}"
        folder.mkdir()
        address = f"ipc://{folder}/dispatch.sock"
        settings = {
            "dispatch.address": address,
            "env_server.address": self.env_address,
            "renderer.tokenizer": self.tokenizer,
            "num_actors": work.num_actors,
            "run_dir": folder,
        }
        words = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        with DispatchRouter(address) as router, daemon(["act", *words], folder, "pool", profile=self.profile) as pool:
            process = pool["process"]
            assert isinstance(process, subprocess.Popen)
            return Learner(work, self.engine, process).run(router)


@contextlib.contextmanager
def stand(options: argparse.Namespace, folder: Path) -> Iterator[Stand]:
    """Env server and engine."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(daemon(["serve", "--env", "echo", "--port", "0"], folder, "env_server"))
        url, key, model = options.engine_url, options.key, options.model
        if not url:
            model, key = folder / "policy", "bench"
            write_policy(model)
            settings = {
                "port": 0,
                "model_path": model,
                "context_tokens": 16384,
                "max_running_requests": 256,
                "weights_root": folder,
            }
            words = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
            url = str(stack.enter_context(daemon(["engine", *words], folder, "engine"))["url"])
        # The pool takes tokens of versions with a number only.
        body = json.dumps({"model_path": str(model), "weight_version": "0"}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        request = urllib.request.Request(f"{url}/update_weights_from_disk", data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=120.0) as response:
            response.read()
        yield Stand(
            folder=folder,
            env_address=str(server["address"]),
            engine=dispatch_pb2.EngineEndpoint(url=url, api_key=key),
            tokenizer=model,
            profile=options.profile,
        )


def throughput(on: Stand, options: argparse.Namespace) -> list[str]:
    """Tokens and episodes per second, and the pool's own CPU."""
    lines = [
        "| episodes at once | turns | tokens/s | episodes/s | pool CPU per turn, ms | pool CPU, share of a core |",
        "|---|---|---|---|---|---|",
    ]
    for num_actors in map(int, options.at_once.split(",")):
        num_episodes = max(options.least_episodes, num_actors)
        work = Work(
            horizons=[TURNS] * num_episodes, num_actors=num_actors, groups_per_step=num_episodes, max_policy_lag=0
        )
        found = on.run(work)
        cpu_ms = 1000 * found.pool_cpu_s / found.num_turns
        lines.append(
            f"| {num_actors} | {found.num_turns} | {found.num_tokens / found.wall_s:.0f} | "
            f"{num_episodes / found.wall_s:.2f} | {cpu_ms:.2f} | {found.pool_cpu_s / found.wall_s:.2f} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    return [
        f"Episodes of {TURNS} turns, {MAX_NEW_TOKENS} new tokens each, after observations of 200 bytes.",
        "",
        *lines,
    ]


def cache(on: Stand, options: argparse.Namespace) -> list[str]:
    """Prompt tokens from the engine's cache over thirty turns."""
    work = Work(horizons=[30] * 4, num_actors=16, group_size=4, groups_per_step=4, max_policy_lag=0)
    found = on.run(work)
    return [f"Of all prompt tokens of 16 episodes of 30 turns, {found.cached_share:.1%} came from the engine's cache."]


def asynchrony(on: Stand, options: argparse.Namespace) -> list[str]:
    """Wall time to the same trained groups, with one batch at a time and with batches ahead."""
    draw = random.Random(3)
    groups_per_step, num_batches = 4, options.num_batches
    horizons = [min(40, int(3 * draw.paretovariate(1.1))) for _ in range(groups_per_step * num_batches)]
    walls: dict[int, float] = {}
    for lag in (0, options.lag):
        work = Work(
            horizons=horizons,
            num_actors=groups_per_step * 2 * (options.lag + 1),
            group_size=2,
            groups_per_step=groups_per_step,
            max_policy_lag=lag,
            train_s=options.train_s,
            step_sleep_ms=options.step_sleep_ms,
            max_new_tokens=4,
        )
        walls[lag] = on.run(work).wall_s
    longest = [max(horizons[at : at + groups_per_step]) for at in range(0, len(horizons), groups_per_step)]
    return [
        f"{len(horizons)} groups of 2 in batches of {groups_per_step}; turns per episode: mean "
        f"{sum(horizons) / len(horizons):.1f}, longest of a batch on average {sum(longest) / len(longest):.1f}; a step "
        f"takes {options.step_sleep_ms:g} ms, training {options.train_s:g} s.",
        "",
        "| max_policy_lag | wall s | |",
        "|---|---|---|",
        f"| 0 (synchronous) | {walls[0]:.1f} | 1 |",
        f"| {options.lag} | {walls[options.lag]:.1f} | {walls[0] / walls[options.lag]:.2f}x |",
    ]


QUESTIONS = {"throughput": throughput, "cache": cache, "asynchrony": asynchrony}


def main() -> None:
    """Measure what was asked for, print it, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(QUESTIONS), help="questions, separated by commas")
    parser.add_argument("--engine-url", default="", help="an engine that runs, such as SGLang")
    parser.add_argument("--model", type=Path, help="folder that the engine at --engine-url serves")
    parser.add_argument("--key", default="", help="its key")
    parser.add_argument("--at-once", default="1,16,64,256", help="episodes at once, for throughput")
    parser.add_argument("--profile", type=Path, help="write where the pool's CPU goes, in text, to this file")
    parser.add_argument("--least-episodes", type=int, default=8, help="episodes at least, where fewer run at once")
    parser.add_argument("--num-batches", type=int, default=10)
    parser.add_argument("--lag", type=int, default=3, help="batches ahead of the learner, for asynchrony")
    parser.add_argument("--train-s", type=float, default=1.0, help="what a training step takes")
    parser.add_argument("--step-sleep-ms", type=float, default=100.0, help="what an environment's step takes")
    parser.add_argument("--output", type=Path, help="markdown file to write")
    options = parser.parse_args()
    if options.engine_url and options.model is None:
        parser.error("--engine-url needs --model, the folder that it serves")
    lines = [f"{options.engine_url or 'embedded engine'}, {platform.machine()}, {os.cpu_count()} cores"]
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch, stand(options, Path(scratch)) as on:
        for name in options.only.split(","):
            print(f"-- {name}", file=sys.stderr)
            lines += ["", f"## {name}", "", *QUESTIONS[name](on, options)]
            print("\n".join(lines[-8:]), file=sys.stderr)
    print("\n".join(lines))
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
