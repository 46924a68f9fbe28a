"""Analysis of request logs and traces."""
