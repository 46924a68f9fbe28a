"""The checks of `kvproxy doctor`; start with `installation`."""
