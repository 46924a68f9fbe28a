"""Optional CPU kernels: faster layers with a reference fallback."""
