"""Commands that analyse logs, traces and labelled questions."""
