"""Which of several engines a request goes to. Pure: no sockets, no clock of its own."""
