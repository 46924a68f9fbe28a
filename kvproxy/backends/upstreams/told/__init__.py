"""What engines tell of themselves: their own figures, what they reused, and what is wrong between them and us."""
