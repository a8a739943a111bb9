"""Forward and backward passes over rows of mixed length: alone, packed, and padded as one batch.

`alone` is a row per pass, `pack N` packs rows up to N tokens (learner.model.pack_tokens), `recompute` is a row per pass
with layers computed again, `padded` one batch with a mask through the same model. All give the same gradients.
Processor time of one thread, methods interleaved, median over rounds. Run: python benchmarks/bench_passes.py
[--rounds N] [--output FILE.json]
"""

import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from learner.head import onepass
from learner.model import PolicyModel
from learner.passes import Pass, PassOptions
from learner.rows import Row

TRAINED_SHARE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    name: str
    hidden: int
    layers: int
    num_rows: int
    shortest: int
    longest: int


SHAPES = (
    Shape(name="1M body, 12 rows of 200-2000", hidden=128, layers=4, num_rows=12, shortest=200, longest=2000),
    Shape(name="1M body, 64 rows of 100-400", hidden=128, layers=4, num_rows=64, shortest=100, longest=400),
    Shape(name="1M body, 128 rows of 20-120", hidden=128, layers=4, num_rows=128, shortest=20, longest=120),
    Shape(name="10M body, 64 rows of 20-120", hidden=384, layers=6, num_rows=64, shortest=20, longest=120),
)
BUDGETS = (256, 512, 2048)
VOCABULARY = 2048


def rows_of(shape: Shape) -> list[Row]:
    order = random.Random(0)
    rows: list[Row] = []
    for _ in range(shape.num_rows):
        length = order.randint(shape.shortest, shape.longest)
        positions = tuple(range(length - max(1, length // TRAINED_SHARE), length))
        rows.append(
            Row(
                ids=tuple(order.randrange(VOCABULARY) for _ in range(length)),
                positions=positions,
                turn_indices=(0,) * len(positions),
                behavior_logprobs=(-1.0,) * len(positions),
                policy_versions=(0,) * len(positions),
            )
        )
    return rows


def token_loss(logprobs: Tensor, entropies: Tensor, tokens: slice) -> Tensor:
    return -(logprobs + 0.01 * entropies)


def packed(rows: list[Row], budget: int) -> list[Pass]:
    found: list[Pass] = []
    for row in rows:
        if found and found[-1].num_tokens + len(row.ids) <= budget:
            found[-1] = Pass(rows=(*found[-1].rows, row), tokens=slice(0, 0))
        else:
            found.append(Pass(rows=(row,), tokens=slice(0, 0)))
    return found


def by_passes(module: Qwen2ForCausalLM, rows: list[Row], options: PassOptions) -> Callable[[], None]:
    model = PolicyModel(module, Path(), options)
    passes = packed(rows, options.pack_tokens)

    def run() -> None:
        for each in passes:
            model.loss(each, token_loss, temperature=1.0)[0].loss.backward()

    return run


def padded(module: Qwen2ForCausalLM, rows: list[Row]) -> Callable[[], None]:
    width = max(len(row.ids) for row in rows)
    ids = torch.tensor([[*row.ids, *[0] * (width - len(row.ids))] for row in rows])
    mask = torch.tensor([[1] * len(row.ids) + [0] * (width - len(row.ids)) for row in rows])
    places = torch.tensor([[index, place - 1] for index, row in enumerate(rows) for place in row.positions])
    targets = torch.tensor([row.ids[place] for row in rows for place in row.positions])

    def run() -> None:
        hidden = module.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        onepass(hidden[places[:, 0], places[:, 1]], module.lm_head.weight, targets, token_loss).loss.backward()

    return run


def gradient_of(module: Qwen2ForCausalLM, run: Callable[[], None]) -> Tensor:
    module.zero_grad(set_to_none=True)
    run()
    return torch.cat([each.grad.flatten() for each in module.parameters() if each.grad is not None])


def measure(shape: Shape, rounds: int) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    heads = shape.hidden // 32
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=4 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        use_sliding_window=False,
    )
    module, rows = Qwen2ForCausalLM(config).eval(), rows_of(shape)
    methods = {
        "alone": by_passes(module, rows, PassOptions()),
        **{f"pack {budget}": by_passes(module, rows, PassOptions(pack_tokens=budget)) for budget in BUDGETS},
        "recompute": by_passes(module, rows, PassOptions(recompute_layers=True)),
        "padded": padded(module, rows),
    }
    expected = gradient_of(module, methods["alone"])
    differences = {name: (gradient_of(module, run) - expected).abs().max().item() for name, run in methods.items()}
    scale = expected.abs().max().item()
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(rounds):
        for name, run in methods.items():
            module.zero_grad(set_to_none=True)
            started_s = time.process_time()
            run()
            times[name].append(time.process_time() - started_s)
    return {
        name: {
            "processor_s": statistics.median(values),
            "ratio_to_alone": statistics.median(values) / statistics.median(times["alone"]),
            "gradient_difference": differences[name] / scale,
        }
        for name, values in times.items()
    }


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    output: Annotated[Path | None, typer.Option(help="Write the figures to this JSON file.")] = None,
) -> None:
    torch.set_num_threads(1)
    console, found = Console(), {}
    for shape in SHAPES:
        found[shape.name] = measure(shape, rounds)
        table = Table("method", "processor s", "ratio to alone", "gradient difference", title=shape.name)
        for name, row in found[shape.name].items():
            table.add_row(
                name, f"{row['processor_s']:.3f}", f"{row['ratio_to_alone']:.2f}", f"{row['gradient_difference']:.1e}"
            )
        console.print(table)
    if output is not None:
        facts = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__, "rounds": rounds}
        output.write_text(json.dumps({"facts": facts, "shapes": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
