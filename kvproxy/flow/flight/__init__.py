"""One request to the backend under way: shared between those who ask the same, read as it passes, and kept."""
