"""Optional linear layers that are faster on a CPU than torch's."""
