"""The three countermeasures."""
