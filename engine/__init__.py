"""The engine: requests in, completions out. Knows tokens, neither files nor terminals."""
