"""One script per SDK: `python -m tests.clients.scripts.NAME URL FILE` prints a line per step, equal in each run."""
