"""`python -m kvproxy.commands`, the same as `kvproxy`."""

from kvproxy.commands import main

main()
