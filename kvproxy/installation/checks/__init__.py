"""The checks of `kvproxy doctor`; start with all_checks.py."""
