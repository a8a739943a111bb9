"""Runs programs that nobody trusts: each in a process of its own that can compute, and nothing else.

Three layers, each on its own or together, as the machine allows: namespaces (own users, processes, network and file
tree), Landlock (no files but the standard library), seccomp (no sockets, processes, signals to others). Limits on CPU
time, memory, output, processes and wall time hold with any of them.

`launcher` and what it imports run inside, under a Python without site-packages: the standard library only.
"""
