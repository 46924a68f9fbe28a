"""Reports of engines: their metrics, their prefix reuse, and the problems of their mirrors."""
