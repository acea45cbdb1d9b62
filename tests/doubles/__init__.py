"""Test doubles: scripted peers and drivers. They play one side of a seam for the other's tests."""
