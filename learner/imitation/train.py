"""Cross-entropy on the demonstrations' reasoning and actions."""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as functional
from torch import Tensor
from transformers import PreTrainedModel

from learner.imitation.config import ImitateConfig
from learner.imitation.model import output_weight
from learner.imitation.muon import Muon
from learner.imitation.rows import DemonstrationRow
from learner.imitation.windows import Window, cut_window
from learner.schedule import RateSchedule
from longturn.errors import LongturnError
from longturn.metrics import MetricsFile

logger = logging.getLogger(__name__)

_REPORT_STEPS = 25


def imitate_rows(
    model: PreTrainedModel, rows: Sequence[DemonstrationRow], config: ImitateConfig, metrics: MetricsFile
) -> float:
    """Train in place and return the mean loss of the last updates, in nats per imitated token."""
    optimizers = _optimizers(model, config)
    schedule = RateSchedule(
        kind="linear",
        learning_rate=1.0,
        warmup_steps=config.warmup_steps,
        min_ratio=config.min_rate_ratio,
        total_steps=config.steps,
    )
    batches = _batches(rows, config)
    model.train()
    started_s, recent = time.monotonic(), list[float]()
    for step in range(config.steps):
        _set_rates(optimizers, config, schedule.rate(step))
        recent.append(_update(model, next(batches), optimizers))
        recent = recent[-_REPORT_STEPS:]
        if (step + 1) % _REPORT_STEPS == 0 or step + 1 == config.steps:
            _report(step + 1, config.steps, recent, time.monotonic() - started_s, metrics)
    model.eval()
    return sum(recent) / len(recent)


def _optimizers(model: PreTrainedModel, config: ImitateConfig) -> tuple[Muon, torch.optim.AdamW]:
    """Muon for the matrices between the layers, AdamW for embeddings, norms and biases."""
    embeddings = {id(model.get_input_embeddings().weight), id(output_weight(model))}
    matrices = [p for p in model.parameters() if p.dim() == 2 and id(p) not in embeddings]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    return (
        Muon(matrices, lr=config.muon_rate),
        torch.optim.AdamW(rest, lr=config.adamw_rate, betas=(0.9, 0.95), weight_decay=0.0),
    )


def _set_rates(optimizers: tuple[Muon, torch.optim.AdamW], config: ImitateConfig, share: float) -> None:
    for optimizer, rate in zip(optimizers, (config.muon_rate, config.adamw_rate), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate * share


def _batches(rows: Sequence[DemonstrationRow], config: ImitateConfig) -> Iterator[list[list[Window]]]:
    """For each update its micro-batches of rows that are about equally long, since padding costs."""
    draw = random.Random(config.seed)
    wholes = _reshuffled(rows, draw)
    for step in itertools.count():
        windows = [cut_window(row, config.short_tokens, draw) for row in draw.choices(rows, k=config.rows_per_step)]
        num_wholes = 0 if step < config.short_steps else config.whole_rows_per_step
        yield [windows, *([(row.ids, row.response_mask)] for row in itertools.islice(wholes, num_wholes))]


def _reshuffled(rows: Sequence[DemonstrationRow], draw: random.Random) -> Iterator[DemonstrationRow]:
    while True:
        yield from draw.sample(rows, len(rows))


def _update(
    model: PreTrainedModel, micro_batches: Sequence[Sequence[Window]], optimizers: tuple[Muon, torch.optim.AdamW]
) -> float:
    """One step on the mean over all imitated tokens of all micro-batches; the mean loss."""
    num_trained = sum(sum(mask[1:]) for windows in micro_batches for _, mask in windows)
    loss = torch.zeros(())
    for windows in micro_batches:
        part = _summed_loss(model, windows) / max(1, num_trained)
        part.backward()
        loss += part.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return _finite(loss)


def _summed_loss(model: PreTrainedModel, windows: Sequence[Window]) -> Tensor:
    ids_BT, mask_BT = _padded(windows)
    hidden_BTD = model.get_decoder()(input_ids=ids_BT[:, :-1], use_cache=False).last_hidden_state
    trained = mask_BT[:, 1:]
    logits_NV = hidden_BTD[trained] @ output_weight(model).T
    return functional.cross_entropy(logits_NV, ids_BT[:, 1:][trained], reduction="sum")


def _finite(loss: Tensor) -> float:
    value = float(loss)
    if not torch.isfinite(loss):
        raise LongturnError(f"the imitation loss is {value}; lower imitate.muon_rate and imitate.adamw_rate")
    return value


def _padded(windows: Sequence[Window]) -> tuple[Tensor, Tensor]:
    """Ids and response mask, B x T, padded at the end, where causal attention never looks."""
    num_tokens = max(len(ids) for ids, _ in windows)
    ids_BT = torch.zeros(len(windows), num_tokens, dtype=torch.long)
    mask_BT = torch.zeros(len(windows), num_tokens, dtype=torch.bool)
    for index, (ids, mask) in enumerate(windows):
        ids_BT[index, : len(ids)] = torch.tensor(ids)
        mask_BT[index, : len(mask)] = torch.tensor(mask)
    return ids_BT, mask_BT


def _report(step: int, steps: int, recent: Sequence[float], elapsed_s: float, metrics: MetricsFile) -> None:
    loss = sum(recent) / len(recent)
    remaining_s = elapsed_s / step * (steps - step)
    metrics.write("imitation_step", step, {"imitation/loss": loss, "imitation/elapsed_s": elapsed_s})
    logger.info(
        "imitating", extra={"step": f"{step}/{steps}", "loss": round(loss, 4), "remaining_s": round(remaining_s)}
    )
