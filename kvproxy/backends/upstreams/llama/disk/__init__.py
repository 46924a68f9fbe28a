"""Slots on disk: keeper.py saves and restores them, shelf.py knows what is in which file."""
