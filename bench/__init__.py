"""Measurements on a real model; not part of the distribution."""
