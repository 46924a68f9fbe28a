"""Text and token ids: the tokenizer, chat templates, tool calls, and incremental detokenizing."""
