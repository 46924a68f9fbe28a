"""What `kvproxy doctor` checks, and the store without a proxy; read `installation` first."""
