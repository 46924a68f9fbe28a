"""Training of the demo model, from the question/answer pairs in `data/`."""
