"""Warm start: a policy that imitates recorded demonstrations, made from nothing or from a given model."""
