"""Stream networks: their description, their execution and its timing. Knows no instruction format and no overlay."""
