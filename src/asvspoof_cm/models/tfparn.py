"""tfparn."""
