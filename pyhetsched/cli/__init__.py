"""The command line: one file a verb, each calling one function elsewhere."""
