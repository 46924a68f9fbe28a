"""Facts about paid APIs that change over time: rules of their prompt caches, and prices of their models."""
