"""Optional CPU kernels with a reference fallback."""
