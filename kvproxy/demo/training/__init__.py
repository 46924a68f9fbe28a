"""Makes the demonstration model and its handbook. Nothing that serves imports it, and the wheel leaves it out."""
