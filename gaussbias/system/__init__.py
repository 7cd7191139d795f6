"""Files, ranks, the terminal, signals, and errors that a user can cause."""
