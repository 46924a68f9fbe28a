"""Execution of scheduled steps on a device."""
