"""Mirrors: copies of engines' prefix cache indexes, from KV events (messages about stored and removed blocks).

An engine has one publisher of events per data-parallel rank.
"""
