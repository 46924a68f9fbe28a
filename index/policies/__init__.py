"""What may be served for a question: one interface, `policy.Policy`, and a file for each policy behind it."""
