"""`learner_summary.json`: what the launcher's summary takes from the learner."""

from __future__ import annotations

from learner.checkpoint_files import find_checkpoints
from learner.phases import Parts
from learner.state import EndReason
from longturn.config import config_digest
from longturn.disk import write_json


def write_summary(parts: Parts, *, reason: EndReason, wall_s: float) -> None:
    """Write the summary atomically; `wall_s` is that of this start, the phases are of the whole history."""
    state, config = parts.state, parts.config
    newest = find_checkpoints(parts.checkpoints_dir)
    num_trained = state.num_trained_trajectories
    summary = {
        "reason": reason.value,
        "run_id": state.run_id,
        "run_epoch": parts.run_epoch,
        "seed": config.seed,
        "config_digest": config_digest(config),
        "policy_version": parts.desk.newest_version(state.training_step),
        "training_steps": state.training_step,
        "batches_consumed": state.batches_consumed,
        "batches_planned": config.batch.num_batches,
        "batches_skipped": state.batches_consumed - state.training_step,
        "trained_trajectories": num_trained,
        "trained_turns_mean": state.num_trained_turns / num_trained if num_trained else None,
        "wall_s": wall_s,
        "phase_wall_s": state.wall_s,
        "used_privileged_progress": config.play.with_progress and config.advantage.turn_weight > 0,
        "permuted_advantages": config.control.permute_advantages,
        "final_model": str(newest[-1].path.resolve()) if newest else None,
    }
    write_json(config.run_dir / "learner_summary.json", summary)
