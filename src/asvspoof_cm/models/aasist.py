"""aasist."""
