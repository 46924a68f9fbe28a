"""The slots of llama.cpp as a prefix cache: start with server.py, then slots.py."""
