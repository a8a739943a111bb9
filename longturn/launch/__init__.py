"""Starts daemons as subprocesses through their command lines, watches them, and ends them."""
