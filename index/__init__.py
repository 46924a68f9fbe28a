"""The response cache: finds stored responses by exact key and by vector similarity."""
