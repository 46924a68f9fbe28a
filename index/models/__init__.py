"""Models of semantic search (embedders and verifiers), and language detection."""
