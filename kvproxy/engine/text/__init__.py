"""Text and tokens: tokenizer, detokenizer, and tool calls."""
