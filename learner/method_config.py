"""Settings of the method: what is rewarded, compared, kept, corrected and regularised. Loads no torch.

Names that choose a method are listed in the types; docs/training.md says what each does. What does not fit together is
refused in `learner.method_checks`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from longturn.config import Config


class RewardConfig(Config):
    """The shaped return: what the filter and the group statistics see."""

    invalid_action_penalty: float = Field(default=0.0, ge=0)
    """Taken off per turn whose action the environment refused."""
    format_penalty: float = Field(default=0.0, ge=0)
    """Taken off per turn without the required form."""
    overlong_penalty: float = Field(default=0.0, ge=0)
    """Taken off an episode at overlong_max_tokens and beyond (DAPO's soft limit; its value is 1); 0: no limit."""
    overlong_max_tokens: int | None = Field(default=None, ge=1)
    """Tokens sampled in an episode from which the whole penalty is due."""
    overlong_soft_tokens: int | None = Field(default=None, ge=1)
    """Width of the ramp below that; absent: a fifth of it, as in DAPO."""


class AdvantageConfig(Config):
    """Advantages."""

    estimator: Literal[
        "grpo", "dr_grpo", "rloo", "reinforce", "grpo_over_turns", "gigpo", "rlvmr", "gae", "turn_gae", "bi_level_gae"
    ] = "grpo"
    """What an episode is compared with: other episodes, with grpo_over_turns, gigpo and rlvmr other turns, with the
    last three the values of a critic (learner.critic)."""
    turn_weight: float = Field(default=1.0, ge=0)
    """Weight of the turn-level term from privileged progress; 0 is none."""
    discount: float = Field(default=0.8, ge=0, le=1)
    """Discount of future progress in the turn-level term."""
    divide_by_std: bool | None = None
    """gigpo, rlvmr: whether to divide by the standard deviation; absent: no for gigpo, yes for rlvmr."""
    gigpo_omega: float = Field(default=1.0, ge=0)
    """Weight of GiGPO's step part."""
    gigpo_discount: float = Field(default=0.95, ge=0, le=1)
    """Discount of later turn rewards in GiGPO's step part."""
    gigpo_anchor: Literal["observation", "state"] = "observation"
    """What must be equal before two turns for GiGPO to compare them: the text shown, or the environment's state."""
    gigpo_episode_over_turns: bool = False
    """True takes GiGPO's episode statistics over turns, as the released code does: long episodes weigh more."""
    rlvmr_rules: Literal["repaired", "released", "appendix"] = "repaired"
    """Which turns RLVMR pays."""
    rlvmr_planning_discount: float = Field(default=1.0, ge=0, le=1)
    """Discount per later planning turn under the rules `appendix`."""
    rlvmr_parser: Literal["strict", "lenient"] = "strict"
    """How RLVMR reads a completion."""
    rlvmr_weight: float = Field(default=1.0, ge=0)
    """Weight of the meta part in RLVMR's released sum."""
    rlvmr_alpha: float | None = Field(default=None, ge=0, le=1)
    """Share of the outcome in the paper's mix, 0.5 there; absent: the released sum."""
    rlvmr_tags_over_batch: bool = False
    """True compares turns of one tag over the whole batch (the paper's text), False within a group."""
    rlvmr_meta_format_penalty: float = Field(default=0.0, ge=0)
    """Taken off the meta reward of a malformed turn (the paper); the released code uses reward.format_penalty."""


class CriticConfig(Config):
    """The critic of advantage.estimator = gae, turn_gae or bi_level_gae; not made with another."""

    trunk: Literal["own", "shared"] = "own"
    """A model of its own, or a value head on the policy's hidden states."""
    path: Path | None = None
    """Hugging Face folder that an own trunk starts from; absent: model.path."""
    learning_rate: float = Field(default=2e-4, gt=0)
    """Peak rate; the shape is that of optimizer.schedule. With a shared trunk it is the rate of the value head."""
    warmup_steps: int = Field(default=0, ge=0)
    """Training steps at the start in which only the critic learns and the policy stays as it is."""
    num_updates: int = Field(default=1, ge=1)
    """Optimizer steps of an own trunk per batch. With one, no value has moved when it is trained and value_clip does
    nothing."""
    value_clip: float = Field(default=0.2, ge=0)
    """How far a value may move from what it was before the batch until its gain stops counting; 0: any distance."""
    coefficient: float = Field(default=0.5, gt=0)
    """Weight of the value loss beside the policy loss, with a shared trunk."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """The critic's gradients are scaled down to this norm."""
    discount: float = Field(default=1.0, ge=0, le=1)
    """Gamma per token, or per turn under turn_gae."""
    smoothing: float = Field(default=1.0, ge=0, le=1)
    """Lambda; 1 takes whole returns, 0 only the next value."""
    turn_discount: float = Field(default=0.95, ge=0, le=1)
    """bi_level_gae: gamma between turns."""
    whiten: bool = True
    """Whether advantages are brought to mean 0 and variance 1 over the kept tokens of a step."""
    bootstrap_on_truncation: bool = False
    """False: a turn or token limit is the outcome of an episode. True: an episode that was cut goes on, worth what the
    critic says after its last token."""


class SnrConfig(Config):
    """The filter on groups."""

    filter: Literal[
        "variance_mass",
        "none",
        "fraction",
        "top_k",
        "min_p",
        "std_linear",
        "std_softmax",
        "has_variance",
        "streaming",
    ] = "variance_mass"
    """Rule."""
    score: Literal["return", "return_plus_turn"] = "return"
    """What is ranked: the variance of shaped returns, or the larger of it and that of mean gains."""
    mass: float = Field(default=0.9, gt=0)
    """variance_mass, streaming, std_linear, std_softmax: share of the total to keep."""
    share: float | None = Field(default=None, gt=0, le=1)
    """fraction, top_k: share of groups to keep (0.9, 0.25); min_p: share of the largest deviation to reach (0.2)."""
    num_groups: int | None = Field(default=None, ge=1)
    """top_k: groups to keep, instead of a share."""
    include_zero: bool | None = None
    """variance_mass, streaming, std_linear, std_softmax: whether groups without variance take part; absent: only in
    std_softmax, as in the released scripts."""
    smallest_first: bool = False
    """std_linear: keep the weakest groups instead of the strongest (an ablation)."""
    success_reward: float = Field(default=1.0, gt=0)
    """What the environment gives for success."""
    epsilon: float = Field(default=0.01, ge=0)
    """Least signal of a batch: variance_mass and streaming in units of success_reward squared, std_linear in units of
    success_reward."""
    score_decay: float = Field(default=0.9, ge=0, lt=1)
    """streaming: weight that a score keeps from one training step to the next."""
    loss_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Factor on advantages from the share of groups that is kept."""
    soft_reweight: bool = False
    """True scales a group's advantages by its standard deviation over the largest of the batch (grpo only)."""


class OffPolicyConfig(Config):
    """Correction for data of older weights."""

    mode: Literal[
        "decoupled",
        "behaviour_ratio",
        "none",
        "icepop",
        "token_rejection",
        "sequence_tis",
        "sequence_mis",
        "geometric_rejection",
        "log_linear",
    ] = "decoupled"
    """Recomputed proximal logprobs with a capped weight, the plain ratio, nothing, or a rule of learner/losses."""
    cap: float = Field(default=2.0, ge=1)
    """Upper bound of the weight."""
    over_cap: Literal["truncate", "drop"] = "truncate"
    """What happens above it."""
    lower: float = Field(default=0.5, ge=0, le=1)
    """Smallest weight that icepop and the rejecting modes accept."""
    upper: float = Field(default=5.0, ge=1)
    """Largest weight that icepop and the rejecting modes accept."""
    veto: float | None = Field(default=None, ge=1e-8, lt=1)
    """Weight below which a single token takes its trajectory out of the update, such as 1e-4; absent: no veto."""
    accept_bias: bool = False
    """Allows mode none although max_policy_lag is above 0."""


class PpoConfig(Config):
    """The clipped surrogate. With one update per batch the ratio is 1 and the clip does nothing."""

    loss: Literal["ppo", "gspo"] = "ppo"
    """One ratio per token, or one per trajectory."""
    clip_low: float | None = Field(default=None, gt=0, le=1)
    """How far the ratio may fall below 1; absent: 0.2 (ppo), 3e-4 (gspo)."""
    clip_high: float | None = Field(default=None, gt=0)
    """How far it may rise above 1; absent: 0.28 (ppo, DAPO's clip-higher), 4e-4 (gspo)."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bound at negative advantage; absent: none."""
    aggregation: Literal["token_mean", "seq_mean_token_mean", "turn_mean", "nested", "constant"] = "token_mean"
    """Which mean the policy loss is."""
    aggregation_constant: float | None = Field(default=None, gt=0)
    """constant: what divides an episode's token sum (Dr.GRPO); absent: play.max_episode_tokens."""


class EpoConfig(Config):
    """Entropy bonus and corridor."""

    enabled: bool = True
    """False: no entropy term at all."""
    entropy_coefficient: float = Field(default=0.001, ge=0)
    """lambda."""
    smooth_coefficient: float | None = Field(default=None, ge=0)
    """Weight of the smoothing penalty; absent: lambda; 0: the plain bonus, EPO-Base."""
    alpha: float = Field(default=0.1, ge=0)
    """Scale of the penalty."""
    kappa_low: float = Field(default=0.0, ge=0)
    """Lower edge, in multiples of the reference entropy."""
    kappa_high: float = Field(default=2.0, gt=0)
    """Upper edge, in multiples of the reference entropy."""
    gamma: float = Field(default=3.0, ge=0)
    """Decay of beta_k."""
    dynamic_weight: bool = True
    """False keeps beta at 1."""
    weight_schedule: Literal["paper", "released"] = "paper"
    """beta_k of the paper, or the decreasing weight of the released code."""
    form: Literal["hinge", "indicator"] = "hinge"
    """Hinge has a gradient, the indicator has none."""
    average: Literal["nested", "token_mean", "turn_mean"] = "nested"
    """Which mean both terms are."""
    decay: Literal["none", "turns", "steps"] = "none"
    """Whether the whole term fades over the turns of an episode, or over training (EPO-Decay)."""
    decay_floor: float = Field(default=0.0, ge=0, le=1)
    """Share of the term that is left at the end of such a fading."""
    history: Literal["cumulative", "sliding", "ema"] = "cumulative"
    """How past entropies become the reference."""
    history_window: int = Field(default=10, ge=1)
    """Steps of a sliding mean."""
    history_decay: float = Field(default=0.9, ge=0, lt=1)
    """Decay of an exponential mean."""
    history_scope: Literal["step", "turn", "turn_released"] = "step"
    """One reference for all tokens, one per turn index, or that with the released code's padding and current step."""


class EntropyControlConfig(Config):
    """Other ways to hold entropy, as baselines beside EPO."""

    method: Literal[
        "none",
        "entropy_advantage",
        "clip_cov",
        "kl_cov",
        "top_entropy",
        "adaptive_coefficient",
        "turn_capped_bonus",
    ] = "none"
    """Which; the last two are entropy bonuses and take EPO's place."""
    alpha: float = Field(default=0.4, ge=0)
    """entropy_advantage: bonus per nat; the paper has 0.4 for GRPO and 0.1 for PPO."""
    kappa: float = Field(default=2.0, gt=1)
    """entropy_advantage: the bonus is at most |A| / kappa."""
    cov_share: float = Field(default=2e-4, gt=0, le=1)
    """clip_cov, kl_cov: share of tokens that is acted on, at least one."""
    cov_low: float = 1.0
    """clip_cov: smallest covariance that is drawn from."""
    cov_high: float = 5.0
    """clip_cov: largest covariance that is drawn from."""
    cov_coefficient: float = Field(default=1.0, ge=0)
    """kl_cov: weight of the distance from the anchor."""
    top_share: float = Field(default=0.2, gt=0, le=1)
    """top_entropy: share of tokens that is trained."""
    target_entropy: float = Field(default=0.2, gt=0)
    """adaptive_coefficient: wanted entropy in nats per token."""
    coefficient_step: float = Field(default=1e-4, gt=0)
    """adaptive_coefficient: how far the coefficient moves per training step, from 0."""
    coefficient_max: float = Field(default=5e-3, gt=0)
    """adaptive_coefficient: its upper bound."""
    bonus_coefficient: float = Field(default=1e-3, ge=0)
    """turn_capped_bonus: weight of the bonus."""
    turn_cap: float = Field(default=1.0, gt=0)
    """turn_capped_bonus: mean entropy of a turn, in nats per token, above which it gets no bonus."""
    average: Literal["nested", "token_mean", "turn_mean"] = "nested"
    """adaptive_coefficient, turn_capped_bonus: which mean the bonus is."""


class ReferenceConfig(Config):
    """KL to a frozen policy: one more forward pass per kept batch."""

    kl: Literal["none", "loss", "reward"] = "none"
    """Where the KL goes: nowhere, into the loss, or into the return that advantages are made of."""
    path: Path | None = None
    """Its Hugging Face folder; absent: model.path, what training started from."""
    coefficient: float = Field(default=0.01, ge=0)
    """Weight of the KL."""
    estimator: Literal["k1", "abs", "k2", "k3", "k3_clamped"] | None = None
    """Estimator per token; absent: k2 in the loss, k1 in the reward."""
    offload: bool = False
    """True keeps the reference on the CPU between its passes."""
