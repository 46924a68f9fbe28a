"""What computes an answer. `protocol.py` is the seam; behind it are the embedded engine and the upstreams."""
