"""What tells healthy training from collapse: mutual information, regimes, staleness, cascade."""
