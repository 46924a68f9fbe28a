"""The journal: the result of each request, and its reason. Read `record.py` first."""
