"""The acting plane: environment clients, policies, the actor pool, evaluation and demonstrations. Loads no torch."""
