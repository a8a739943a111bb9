"""The training plane: hands out groups, keeps the ledger, trains, checkpoints and publishes weights."""
