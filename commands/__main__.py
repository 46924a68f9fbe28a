"""Runs `python -m kvproxy.commands`."""

from kvproxy.commands import main

main()
