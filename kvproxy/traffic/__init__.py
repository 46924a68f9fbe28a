"""Requests of the past, from files: read, replayed to see what caching would have saved, and searched for what spoils it."""
