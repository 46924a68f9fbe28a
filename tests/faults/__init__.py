"""What goes wrong outside the program: processes killed, disks full, files damaged, clocks set, clients that misbehave.

Each harness is a module with a `run`. The tests run it short; `python -m tests.faults.NAME --rounds N` runs it long, and
`make faults` runs all of them. Start with `harness.py`.
"""
