"""Access to a proxy's cache and journal: over HTTP from a running proxy, or directly from its files."""
