"""Conversations (sessions) in the journal, their requests (turns), and the ledger of reused and lost prompt tokens."""
