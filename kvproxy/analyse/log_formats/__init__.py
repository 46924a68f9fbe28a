"""The formats of request logs, one file per family; `registry.py` lists them."""
