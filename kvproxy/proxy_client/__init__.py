"""Access to a proxy: over HTTP while it runs, or through its files."""
