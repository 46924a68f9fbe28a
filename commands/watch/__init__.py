"""What `kvproxy top` looks at, and the screen that shows it: read look.py first, then screen.py."""
