"""The journal: what became of each request, and why. Read `record.py` first."""
