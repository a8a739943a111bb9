"""Which groups of a batch are trained: a score per group, then a rule over the scores. One rule per file, no torch.

Rules by name are in `learner.filters.registry`; a new one is a new file and an entry there.
"""
