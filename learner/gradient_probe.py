"""Gradient norms of a batch's groups by reward variance and component, at the weights before the update (RAGEN-2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import torch

from learner.advantages.dr_grpo import dr_grpo
from learner.batch import Batch, BatchTensors, tensors_of, tokens_of_groups
from learner.critic.estimate import Values
from learner.diagnostics.gradient_decomposition import Backward, decompose, quantile_buckets
from learner.filters.scores import return_variance
from learner.losses.epo import EpoStep
from learner.losses.step_loss import LossOptions
from learner.losses.token_terms import TokenTerms
from learner.model import PolicyModel
from learner.step_terms import Scores, StepContext, step_terms
from learner.update import accumulate_gradients
from learner.update_options import UpdateOptions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GradientProbe:
    """What a measurement needs; it makes no optimizer step and leaves no gradient behind."""

    model: PolicyModel
    options: UpdateOptions
    epo_step: EpoStep | None
    num_buckets: int
    reference_logprobs: Callable[[BatchTensors], torch.Tensor] | None = None
    values: Callable[[BatchTensors], Values | None] = lambda kept: None
    """What a critic says, where there is one."""
    on_row: Callable[[], None] = lambda: None

    def measure(self, batch: Batch, proximal: Scores) -> dict[str, float]:
        """Norms per bucket, by metric name; `proximal` are the scores of the batch's tokens.

        `task` is the loss that is trained, `task_raw` the same with R - mean R as advantage, which whitening does not
        level out.
        """
        stds = [return_variance(group.returns) ** 0.5 for group in batch.groups]
        layout = tensors_of(batch).layout
        measures: dict[str, float] = {}
        for number, bucket in enumerate(quantile_buckets(stds, self.num_buckets)):
            kept = tensors_of(batch.restricted_to(bucket))
            found = decompose(
                self._components(kept, proximal.take(tokens_of_groups(layout, bucket)), batch.taken.batch),
                list(self.model.module.parameters()),
            )
            name = f"learner/gradient/bucket_{number}"
            measures |= {f"{name}/{component}_norm": norm for component, norm in found.norms.items()}
            measures |= {
                f"{name}/dominance": found.dominance,
                f"{name}/return_std_mean": fmean(stds[index] for index in bucket),
                f"{name}/groups": len(bucket),
            }
        return measures

    def _components(self, kept: BatchTensors, proximal: Scores, batch: int) -> dict[str, Backward]:
        reference = self.reference_logprobs(kept) if self.reference_logprobs is not None else None
        context = StepContext(epo_step=self.epo_step, reference_logprobs_N=reference, values=self.values(kept))
        terms = step_terms(kept, proximal, self.options, batch=batch, context=context).token_terms
        loss, nothing_N = self.options.loss, torch.zeros_like(terms.advantages_N)
        raw_J = dr_grpo(kept.returns_J, kept.layout.group_index_J)
        policy = replace(terms, entropy_weights_N=nothing_N)
        without_kl = replace(loss, kl=None)
        raw = replace(policy, advantages_N=raw_J[kept.layout.trajectory_index_N])
        components = {
            "task": self._backward(kept, policy, without_kl),
            "task_raw": self._backward(kept, raw, without_kl),
        }
        if loss.epo is not None:
            silent = replace(terms, policy_weights_N=nothing_N)
            components["entropy"] = self._backward(kept, silent, without_kl)
        if loss.kl is not None:
            components["kl"] = self._backward(kept, replace(policy, advantages_N=nothing_N, anchor_kl_N=None), loss)
        return components

    def _backward(self, kept: BatchTensors, terms: TokenTerms, loss: LossOptions) -> Backward:
        run = partial(
            accumulate_gradients,
            self.model,
            kept,
            terms,
            loss,
            temperature=self.options.temperature,
            epo_step=self.epo_step,
            on_row=self.on_row,
        )

        def backward() -> None:
            run()

        return backward
