"""What the cache learns of which answer serves which question: read `learner` first."""
