"""The learner's durable record: slots, groups, attempts, trajectories, verdicts, batches, versions."""
