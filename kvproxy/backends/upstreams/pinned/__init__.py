"""Pins on engines that have none: a chain that loses blocks is computed again. Read `pins.py` first."""
