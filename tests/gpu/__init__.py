"""Everything that a GPU is needed for, in one call: `python -m tests.gpu`."""
