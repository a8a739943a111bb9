"""Which groups of a batch are trained: a score per group, then a rule over the scores. One rule per file, no torch.

A new rule is a new file, its name in `learner.method_config` and an entry in `learner.filter_options`.
"""
