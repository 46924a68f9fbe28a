"""Databases of the journal: an SQLite file of one proxy, or PostgreSQL for several proxies."""
