"""Per-token losses; each file holds one idea, `step_loss` puts them together."""
