"""Programs, the programs derived from them, and how both are applied."""
