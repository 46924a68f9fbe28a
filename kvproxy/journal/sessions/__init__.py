"""Conversations in the journal, and the ledger of their prompt tokens."""
