"""Outside agents that speak chat completions: their tokens are recorded while they play."""
