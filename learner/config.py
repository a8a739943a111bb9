"""Settings of the learner: the table `[learner]` of a run's TOML file. Loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from learner.method_checks import refusals
from learner.method_config import (
    AdvantageConfig,
    CriticConfig,
    EntropyControlConfig,
    EpoConfig,
    OffPolicyConfig,
    PpoConfig,
    ReferenceConfig,
    RewardConfig,
    SnrConfig,
)
from longturn.config import Config
from longturn.tag_format import MAX_CLOSING_TOKENS as _END_TOKENS


class ModelConfig(Config):
    """The weights that training starts from."""

    path: Path = Path("model")
    """Hugging Face folder: config.json, model.safetensors, tokenizer.json."""
    device: str = "cpu"
    """Where the learner computes, such as cpu or cuda:0."""
    num_threads: int = Field(default=1, ge=1)
    """Threads of torch."""
    max_row_tokens: int = Field(default=8192, ge=16)
    """Trajectories with a longer row are refused: the episode budget must lie below."""
    pack_tokens: int = Field(default=0, ge=0)
    """Rows share a forward pass until they hold that many tokens; 0: every row alone. The result is the same."""
    recompute_layers: bool = False
    """True computes the layers again in the backward pass instead of keeping what lies between (gradient
    checkpointing): less memory, a third more time."""


class LoraConfig(Config):
    """Training a low-rank adapter instead of all weights. Engines are given weights with the adapter in them."""

    rank: int = Field(default=0, ge=0)
    """Rank of the adapter's matrices; 0: no adapter, all weights are trained. Needs the extra `lora`."""
    alpha: float = Field(default=32.0, gt=0)
    """The adapter's product is multiplied by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Names of the linear layers that get one, such as q_proj; absent: all but the head."""


class RanksConfig(Config):
    """Several processes that share a training step; they are started by `torchrun -m learner`."""

    timeout_s: float = Field(default=1800.0, gt=0)
    """How long a rank waits for another: longer than publishing and the longest share of a step may take."""


class TasksConfig(Config):
    """What is played in the slots."""

    path: Path = Path("tasks/train.jsonl")
    """Task file."""
    order: Literal["shuffled", "sequential"] = "shuffled"
    """New order at every pass through the file, or the order of the file."""


class BatchConfig(Config):
    """Shape of a batch, and how far groups may run ahead of the learner."""

    groups_per_step: int = Field(default=8, ge=1)
    """Groups of a batch."""
    group_size: int = Field(default=8, ge=1)
    """Members of a group."""
    num_batches: int = Field(default=24, ge=1)
    """Planned batches of the run; EPO's K and the learning rate's span."""
    max_refill: int = Field(default=0, ge=0)
    """Dynamic sampling: groups that may be added to a batch, one for each in which all members did alike; 0: none."""
    max_policy_lag: int = Field(default=1, ge=0)
    """Batches that groups may be assigned ahead; 0 is synchronous."""
    max_slot_failures: int = Field(default=3, ge=1)
    """Failed groups after which a slot is closed and its batch is short."""


class PlayConfig(Config):
    """How groups are played; sent to all pools."""

    temperature: float = Field(default=1.0, gt=0)
    """Divides the logits, in sampling and in training alike."""
    max_new_tokens: int = Field(default=64, ge=1)
    """Most tokens of a completion."""
    max_turns: int = Field(default=0, ge=0)
    """Turn limit; 0 is the environment's own."""
    max_episode_tokens: int = Field(default=4096, ge=1)
    """Most tokens of an episode, prompts included."""
    max_episode_s: float = Field(default=300.0, gt=0)
    """Wall budget of an episode."""
    max_group_s: float = Field(default=900.0, gt=0)
    """Wall budget of a group."""
    with_progress: bool = True
    """Whether to ask for the privileged progress that the turn-level term needs."""
    max_member_retries: int = Field(default=2, ge=0)
    """Fresh episodes for a member that was aborted, failed or ran out of time."""


class DispatchConfig(Config):
    """The socket that pools connect to."""

    address: str | None = None
    """ipc://PATH or tcp://127.0.0.1:PORT; absent: a socket file in the run folder."""
    heartbeat_s: float = Field(default=2.0, gt=0)
    """Seconds between heartbeats."""
    pool_timeout_s: float = Field(default=15.0, gt=0)
    """Silence after which a pool's groups go to another one."""
    max_message_bytes: int = Field(default=64 * 2**20, ge=1024)
    """Longest frame."""
    queue_messages: int = Field(default=1024, ge=1)
    """Frames that may wait per peer and direction."""


class EngineConfig(Config):
    """One inference engine."""

    url: str = Field(pattern="^https?://")
    """Base address, such as http://127.0.0.1:30000."""
    api_key_file: Path | None = None
    """File that holds its key."""


class BroadcastConfig(Config):
    """Weights over a process group, for SGLang engines that do not see the learner's disk."""

    address: str = "127.0.0.1"
    """Address of this machine that the engines reach; ports are free ones."""
    backend: Literal["gloo", "nccl"] = "gloo"
    """gloo sends from memory, nccl between GPUs."""
    bucket_bytes: int = Field(default=512 * 2**20, ge=1)
    """Most bytes that an engine receives before it loads them."""


class PublishConfig(Config):
    """How new weights reach the engines."""

    engines: tuple[EngineConfig, ...] = ()
    """Engines in rotation."""
    require_engine: bool = True
    """False: versions are announced without any engine, for pools that need none (replays, scripted policies)."""
    pause_mode: Literal["in_place", "retract", "abort"] = "retract"
    """What happens to running requests: keep their cache, recompute it under the new weights, or end them."""
    transport: Literal["disk", "broadcast"] = "disk"
    """Whether engines read the weight folder or get its tensors over a process group."""
    broadcast: BroadcastConfig = BroadcastConfig()
    """Settings of that group."""
    cache_rule: Literal["flush", "salt", "keep"] = "flush"
    """What becomes of cached prefixes of old weights: dropped, left to turns that began with them, or used by all."""
    confirm_timeout_s: float = Field(default=60.0, gt=0)
    """If no engine confirms a version within this time, the old one stays and an alarm is raised."""
    connect_timeout_s: float = Field(default=600.0, gt=0)
    """Budget for the first engine to appear at the start."""
    check_interval_s: float = Field(default=2.0, gt=0)
    """How often engines are asked which weights they hold; one that restarted is loaded again."""
    keep_weights: int = Field(default=3, ge=2)
    """Newest weight folders that stay on the disk."""

    @model_validator(mode="after")
    def _cannot_flush_in_place(self) -> PublishConfig:
        if self.pause_mode == "in_place" and self.cache_rule == "flush":
            raise ValueError(
                "pause_mode = in_place keeps the cache of running requests: set cache_rule = keep or salt, or use"
                " retract"
            )
        return self


class OptimizerConfig(Config):
    """AdamW and its learning rate."""

    learning_rate: float = Field(default=2e-4, gt=0)
    """Peak rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after the warm-up, by training step."""
    warmup_steps: int = Field(default=0, ge=0)
    """Training steps of linear warm-up."""
    min_ratio: float = Field(default=0.1, ge=0, le=1)
    """Last rate of a decay, as a share of the peak."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the mean gradient."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the mean square."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Added to the root."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled decay."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm."""


class CheckpointConfig(Config):
    """Checkpoints."""

    every: int = Field(default=5, ge=1)
    """Training steps between two."""
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints that stay."""
    on_damage: Literal["error", "previous"] = "error"
    """What to do if the newest checkpoint is damaged: stop, or take the one before."""


class StopConfig(Config):
    """When to stop before the planned batches."""

    max_skipped_in_a_row: int = Field(default=10, ge=1)
    """That many batches without an update in a row end the run: by rule NO_SIGNAL, without error, if every group was
    filtered away; as an error NO_GROUPS if groups failed, or NON_FINITE if numbers did."""


class EvaluationConfig(Config):
    """Evaluation during training, on a fixed panel that is never trained on."""

    every: int = Field(default=0, ge=0)
    """Training steps between two; 0: never."""
    path: Path | None = None
    """Task file of the panel."""
    num_tasks: int = Field(default=32, ge=1)
    """First lines of the file that are played."""
    temperature: float = Field(default=1.0, ge=0)
    """Temperature; 0 is greedy."""
    wait_s: float = Field(default=300.0, ge=0)
    """How long the end of the run waits for evaluations that are still played."""

    @model_validator(mode="after")
    def _needs_a_panel(self) -> EvaluationConfig:
        if self.every and self.path is None:
            raise ValueError("evaluation.every needs evaluation.path, a task file")
        return self


class DiagnosticsConfig(Config):
    """Whether reasoning still depends on the input (mutual information proxy)."""

    every: int = Field(default=4, ge=0)
    """Training steps between two; 0: never."""
    num_samples: int = Field(default=16, ge=2)
    """Turns that are cross-scored; never compare values of different numbers."""
    gradients_every: int = Field(default=0, ge=0)
    """Training steps between two measurements of gradient norms by reward variance, which cost several backward passes
    each; 0: never."""
    gradient_buckets: int = Field(default=6, ge=1)
    """Equal buckets of groups in such a measurement."""


class AlarmConfig(Config):
    """Limits whose crossing is logged and counted."""

    max_mean_abs_log_weight: float = Field(default=0.1, gt=0)
    """Mean distance between sampler and trainer, in nats."""
    min_effective_sample_size: float = Field(default=0.5, gt=0, le=1)
    """Of the importance weights, as a share."""
    max_repeated_token_share: float = Field(default=0.8, gt=0, le=1)
    """Share of a batch's sampled tokens that repeat the one before them: degenerate output."""
    on_repetition: Literal["log", "stop"] = "log"
    """What follows when it is crossed: a log line, or the end of the run before the batch is trained."""


class ControlConfig(Config):
    """Switches for control runs; they destroy the signal on purpose."""

    permute_advantages: bool = False
    """Permute A_group over the batch's trajectories and Z_t over all its turns."""


class LearnConfig(Config):
    """All settings of `longturn learn`."""

    run_dir: Path = Path("runs/default")
    """Folder of the run: ledger, checkpoints, weights, metrics."""
    seed: int = Field(default=0, ge=0)
    """Fixes task order, sampling seeds and every other choice of the learner."""
    model: ModelConfig = ModelConfig()
    """Initial weights and where to compute."""
    lora: LoraConfig = LoraConfig()
    """An adapter."""
    ranks: RanksConfig = RanksConfig()
    """Processes of a training step."""
    tasks: TasksConfig = TasksConfig()
    """What is played."""
    batch: BatchConfig = BatchConfig()
    """Shape of a batch."""
    play: PlayConfig = PlayConfig()
    """How it is played."""
    dispatch: DispatchConfig = DispatchConfig()
    """Socket for pools."""
    publish: PublishConfig = PublishConfig()
    """Engines and weights."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW."""
    reward: RewardConfig = RewardConfig()
    """Shaped return."""
    advantage: AdvantageConfig = AdvantageConfig()
    """Advantages."""
    critic: CriticConfig = CriticConfig()
    """Values, for advantages that are made of them."""
    snr: SnrConfig = SnrConfig()
    """Filter."""
    off_policy: OffPolicyConfig = OffPolicyConfig()
    """Staleness."""
    ppo: PpoConfig = PpoConfig()
    """Policy loss."""
    epo: EpoConfig = EpoConfig()
    """Entropy."""
    entropy_control: EntropyControlConfig = EntropyControlConfig()
    """Other ways to hold entropy."""
    reference: ReferenceConfig = ReferenceConfig()
    """Distance from a frozen policy."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    stop: StopConfig = StopConfig()
    """Early end."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Evaluation during training."""
    diagnostics: DiagnosticsConfig = DiagnosticsConfig()
    """Mutual information."""
    alarms: AlarmConfig = AlarmConfig()
    """Limits."""
    control: ControlConfig = ControlConfig()
    """Control runs."""
    tensorboard: bool = True
    """Whether to write TensorBoard files beside the JSONL metrics."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of /metrics on loopback; 0 takes a free one; absent: not served."""
    status_port: int = Field(default=0, ge=0, le=65535)
    """Port of the status service; 0 takes a free one."""

    @model_validator(mode="after")
    def _check(self) -> LearnConfig:
        for message in refusals(self):
            raise ValueError(message)
        if self.play.max_episode_tokens + _END_TOKENS > self.model.max_row_tokens:
            raise ValueError(
                f"play.max_episode_tokens must lie at least {_END_TOKENS} below model.max_row_tokens, which is "
                f"{self.model.max_row_tokens}: an episode that used up its budget is still ended by closing tags"
            )
        return self

    @property
    def dispatch_address(self) -> str:
        """Where pools connect."""
        return self.dispatch.address or f"ipc://{self.run_dir.resolve()}/dispatch.sock"
