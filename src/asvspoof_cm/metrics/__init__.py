"""The ASVspoof metrics."""
