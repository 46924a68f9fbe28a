"""The bill of a log, and how reports of costs differ from it."""
