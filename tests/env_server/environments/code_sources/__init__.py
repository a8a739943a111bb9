"""Where the bundled programming problems come from.

Each problem has a reference solution, the program that the data file carries as the oracle's answer, and an independent
solver by another method, whose answers are the tests' expected outputs. `python -m
tests.env_server.environments.code_sources.write` writes the data file; a test holds it to these sources.
"""
