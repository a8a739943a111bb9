"""Everything that shapes an update; built from the configuration in `learner.options`."""

from __future__ import annotations

from dataclasses import dataclass, field

from learner.advantages.shaping import RewardOptions
from learner.advantages.token_shaping import AdvantageShaper
from learner.advantages.turn_inputs import TurnAdvantage
from learner.critic.estimate import ValueOptions
from learner.filters.loss_scaling import LossScaling, none
from learner.losses.adaptive_coefficient import AdaptiveOptions
from learner.losses.entropy_weights import TurnScale
from learner.losses.kl import KlOptions
from learner.losses.off_policy import OffPolicyOptions
from learner.losses.step_loss import LossOptions
from learner.schedule import RateSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOptions:
    """Absent parts are methods that are off."""

    loss: LossOptions
    off_policy: OffPolicyOptions
    aggregation: str
    estimator: str
    turn_weight: float
    temperature: float
    max_grad_norm: float
    schedule: RateSchedule
    aggregation_constant: float | None = None
    """What divides an episode's token sum under the aggregation `constant`."""
    turn_estimator: TurnAdvantage | None = None
    """Stands for `estimator` where turns are told apart."""
    value: ValueOptions | None = None
    """Stands for `estimator` where a critic says what episodes are worth."""
    reward: RewardOptions = field(default_factory=RewardOptions)
    """Penalties, for estimators that look at turns."""
    reward_kl: KlOptions | None = None
    """Reference KL in the return that advantages are made of."""
    loss_scaling: LossScaling = none
    """Factor on advantages from the kept ratio."""
    soft_reweight: bool = False
    """True scales advantages by the spread of their group."""
    shaper: AdvantageShaper | None = None
    """Reshapes advantages token by token."""
    anchor_kl: AdvantageShaper | None = None
    """Gives each token the weight of its distance from the anchor."""
    has_sequence_ratio: bool = False
    """True takes one ratio per trajectory (GSPO)."""
    turn_scale: TurnScale | None = None
    """Scales the entropy term per turn."""
    adaptive: AdaptiveOptions | None = None
    """Moves the coefficient of the entropy term."""
    seed: int = 0
    """Fixes random choices within a step."""
    permute_seed: int | None = None
    """Set in control runs: advantages are permuted with this seed."""

    @property
    def scores_first(self) -> bool:
        """Whether anything but the loss itself looks at the policy before the update.

        If not, the update's own forward pass gives the proximal policy: a batch is one optimizer step.
        """
        epo = self.loss.epo
        return (
            not self.off_policy.is_in_update
            or self.has_sequence_ratio
            or (epo is not None and epo.history_scope == "turn_released")
            or any(
                part is not None
                for part in (self.reward_kl, self.shaper, self.anchor_kl, self.turn_scale, self.adaptive)
            )
        )

    @property
    def reads_reference(self) -> bool:
        """Whether an update needs logprobs of the reference policy."""
        return self.loss.kl is not None or self.reward_kl is not None
