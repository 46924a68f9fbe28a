"""Faults outside the program: killed processes, full disks, damaged files, clock changes, and misbehaving clients.

Each harness is a module with a `run`. The tests run it briefly, and `python -m tests.faults NAME --rounds N` runs it at any
length. Start with `harness.py`.
"""
