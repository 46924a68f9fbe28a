"""The HTTP side: routes, the flow of a request, and the backends behind it."""
