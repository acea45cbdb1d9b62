"""Checks and generators for contributors; not part of the distribution."""
