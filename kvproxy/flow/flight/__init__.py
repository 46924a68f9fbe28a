"""One request to the backend under way: shared between those who ask the same, and read as it passes."""
