"""`python -m commands`, the same as `kvproxy`."""

from commands import main

main()
