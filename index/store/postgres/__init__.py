"""The response store in PostgreSQL with pgvector."""
