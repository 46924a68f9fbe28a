"""The journal: a record of each request, with its result and the reason for it. Read `record.py` first."""
