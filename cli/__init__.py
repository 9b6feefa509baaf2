"""The command line: talks to people, owns the loop that takes a row through the engine."""
