"""llama.cpp's slots as a prefix cache: read server.py first, then plan.py (which slot a request goes to)."""
