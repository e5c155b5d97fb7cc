"""rawnet2."""
