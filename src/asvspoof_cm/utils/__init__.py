"""The plumbing that every other room uses: tables, files, checks, processes, progress."""
