"""Adapters to other projects, none of which needs to be installed."""
