"""Paged attention: `paged_attention.py` calls the backends of `interface.py`."""
