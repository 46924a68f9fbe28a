"""Build the demo model and its handbook."""
