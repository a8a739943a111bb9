"""Head time and memory (logprob + entropy, both with gradients) against plain torch and verl's fused head if installed.

A quarter of the positions is trained. `plain` makes the logits of every position, `plain_selected` those of the trained
ones; `three_products` is the limit: the matrix products that no exact method can avoid. Processor time of one thread,
methods interleaved, median over rounds; peak memory above rest. Also cross scoring with shared prompts against whole
sequences. Run: python benchmarks/bench_learner.py [--rounds N] [--output FILE.json]
"""

import ctypes
import importlib.util
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from learner.diagnostics.cross_scoring import cross_score
from learner.head import onepass, recompute

TRAINED_SHARE = 4
Head = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    name: str
    hidden: int
    vocabulary: int
    num_positions: int


SHAPES = (
    Shape(name="1M body, 2k", hidden=128, vocabulary=2_048, num_positions=4_096),
    Shape(name="10M body, 2k", hidden=384, vocabulary=2_048, num_positions=2_048),
    Shape(name="1M body, 32k", hidden=128, vocabulary=32_768, num_positions=1_024),
    Shape(name="1M body, 151k", hidden=128, vocabulary=151_936, num_positions=256),
)


class HeadInputs:
    """Hidden states of every position, the head, and the constants of a clipped loss on the trained quarter."""

    def __init__(self, shape: Shape) -> None:
        generator = torch.Generator().manual_seed(0)
        self.hidden = torch.randn(shape.num_positions, shape.hidden, generator=generator).requires_grad_()
        weight = torch.randn(shape.vocabulary, shape.hidden, generator=generator) * 8 / shape.hidden
        self.weight = weight.requires_grad_()
        self.targets = torch.randint(shape.vocabulary, (shape.num_positions,), generator=generator)
        self.trained = torch.arange(shape.num_positions) % (2 * TRAINED_SHARE) >= 2 * (TRAINED_SHARE - 1)
        num_trained = int(self.trained.sum())
        self.advantages = torch.randn(num_trained, generator=generator)
        self.anchor = -torch.rand(num_trained, generator=generator) * 10

    def losses(self, logprobs: Tensor, entropies: Tensor, tokens: slice = slice(None)) -> Tensor:
        ratio = (logprobs - self.anchor[tokens]).clamp(-20, 20).exp()
        advantages = self.advantages[tokens]
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        return -(surrogate + 0.01 * entropies) / len(self.advantages)

    def clear(self) -> None:
        self.hidden.grad = self.weight.grad = None


def plain_head(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logp = torch.log_softmax(hidden @ weight.T, dim=-1)
    return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(dim=1)


def every_position(head: Head) -> Callable[[HeadInputs], None]:
    def run(inputs: HeadInputs) -> None:
        logprobs, entropies = head(inputs.hidden, inputs.weight, inputs.targets)
        inputs.losses(logprobs[inputs.trained], entropies[inputs.trained]).sum().backward()

    return run


def trained_positions(head: Head) -> Callable[[HeadInputs], None]:
    def run(inputs: HeadInputs) -> None:
        chosen = inputs.trained
        logprobs, entropies = head(inputs.hidden[chosen], inputs.weight, inputs.targets[chosen])
        inputs.losses(logprobs, entropies).sum().backward()

    return run


def run_onepass(inputs: HeadInputs) -> None:
    chosen = inputs.trained
    onepass(inputs.hidden[chosen], inputs.weight, inputs.targets[chosen], inputs.losses).loss.backward()


def run_three_products(inputs: HeadInputs) -> None:
    with torch.no_grad():
        hidden = inputs.hidden[inputs.trained]
        for rows in hidden.split(max(1, 2**24 // inputs.weight.shape[0])):
            logits = rows @ inputs.weight.T
            torch.mm(logits, inputs.weight)
            torch.mm(logits.T, rows)


def methods() -> dict[str, Callable[[HeadInputs], None]]:
    found = {
        "plain": every_position(plain_head),
        "plain_selected": trained_positions(plain_head),
        "recompute": trained_positions(recompute),
        "onepass": run_onepass,
        "three_products": run_three_products,
    }
    fused = verl_fused_head()
    if fused is not None:
        found["verl_fused"] = every_position(fused)
    return found


def verl_fused_head() -> Head | None:
    """verl's fused head, loaded from its file: importing the package would ask for Ray and an engine."""
    package = importlib.util.find_spec("verl")
    if package is None or not package.submodule_search_locations:
        return None
    path = Path(package.submodule_search_locations[0]) / "utils" / "experimental" / "torch_functional.py"
    spec = importlib.util.spec_from_file_location("verl_torch_functional", path)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FusedLinearForPPO()


def peak_mib(run: Callable[[], None]) -> float | None:
    """Highest resident memory above the level before `run`; absent outside Linux with glibc."""
    if platform.libc_ver()[0] != "glibc":
        return None
    # Freed heap that stays resident would hide the next method's needs.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_kib("VmRSS")
    run()
    return (_status_kib("VmHWM") - before) / 1024


def _status_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")


def measure(shape: Shape, rounds: int) -> dict[str, dict[str, float | None]]:
    inputs, found = HeadInputs(shape), methods()
    peaks: dict[str, float | None] = {}
    times: dict[str, list[float]] = {name: [] for name in found}
    for name, run in found.items():
        inputs.clear()
        peaks[name] = peak_mib(lambda run=run: run(inputs))
    for _ in range(rounds):
        for name, run in found.items():
            inputs.clear()
            started = time.process_time()
            run(inputs)
            times[name].append(time.process_time() - started)
    plain = statistics.median(times["plain"])
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        name: {"time_s": value, "ratio_to_plain": value / plain, "peak_mib": peaks[name]}
        for name, value in medians.items()
    }


def measure_cross_scoring(num_prompts: int = 8, num_samples: int = 128) -> dict[str, float]:
    """Prompt of 400 tokens, samples of 60, a body of 0.8 M parameters."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=2048,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
    ).eval()
    prompts = torch.randint(2048, (num_prompts, 400)).tolist()
    samples = torch.randint(2048, (num_samples, 60)).tolist()
    started = time.process_time()
    shared = cross_score(model, prompts, samples)
    shared_s = time.process_time() - started
    started = time.process_time()
    whole = torch.stack([_score_whole(model, prompt, samples) for prompt in prompts], dim=1)
    whole_s = time.process_time() - started
    difference = (shared - whole).abs().max().item()
    tokens_whole = num_prompts * num_samples * 460
    limit = tokens_whole / (num_prompts * (400 + 60 * num_samples))
    return {
        "whole_s": whole_s,
        "shared_s": shared_s,
        "speed_up": whole_s / shared_s,
        "limit_by_tokens": limit,
        "difference_nats": difference,
    }


@torch.no_grad()
def _score_whole(model: Qwen2ForCausalLM, prompt: list[int], samples: list[list[int]]) -> Tensor:
    sums: list[Tensor] = []
    for block in (samples[start : start + 8] for start in range(0, len(samples), 8)):
        ids = torch.tensor([prompt + sample for sample in block])
        logits = model(input_ids=ids).logits[:, len(prompt) - 1 : -1]
        logp = torch.log_softmax(logits.float(), dim=-1)
        logprobs = logp.gather(2, ids[:, len(prompt) :, None])[..., 0]
        sums.append(logprobs.double().sum(dim=1))
    return torch.cat(sums)


def show(results: dict[str, Any], console: Console) -> None:
    for shape in SHAPES:
        table = Table(title=f"{shape.name}: {shape.num_positions} positions, a quarter trained")
        for heading in ("head", "time s", "x plain", "x plain_selected", "x limit", "peak MiB"):
            table.add_column(heading, justify="left" if heading == "head" else "right")
        rows = results["heads"][shape.name]
        selected, limit = rows["plain_selected"]["time_s"], rows["three_products"]["time_s"]
        for name, row in rows.items():
            ratios = (row["ratio_to_plain"], row["time_s"] / selected, row["time_s"] / limit)
            peak = "" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
            table.add_row(name, f"{row['time_s']:.3f}", *(f"{ratio:.2f}" for ratio in ratios), peak)
        console.print(table)
    cross = results["cross_scoring"]
    console.print(
        f"cross scoring: {cross['speed_up']:.1f}x over whole sequences (tokens alone allow "
        f"{cross['limit_by_tokens']:.1f}x), largest difference {cross['difference_nats']:.1e} nats"
    )


def main(
    rounds: Annotated[int, typer.Option(help="Timed rounds per method; the median counts.")] = 3,
    output: Annotated[Path | None, typer.Option(help="Write the figures to this JSON file too.")] = None,
) -> None:
    """Time the head and cross scoring on one thread."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {
        "machine": f"{platform.machine()}, one thread",
        "torch": torch.__version__,
        "rounds": rounds,
        "heads": {shape.name: measure(shape, rounds) for shape in SHAPES},
        "cross_scoring": measure_cross_scoring(),
    }
    show(results, Console())
    if output is not None:
        output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
