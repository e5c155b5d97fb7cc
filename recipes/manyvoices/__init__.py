"""A training corpus of hundreds of generators: demo pages, copies of human clips, new voices."""
