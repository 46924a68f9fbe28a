"""What became of a request: for the journal, and for the client that asks why nothing was reused."""
