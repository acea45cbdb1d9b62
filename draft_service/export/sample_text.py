"""A short text to measure an export on where none is given."""

from __future__ import annotations

from typing import Final

SAMPLE_TEXT: Final = '''\
The harbour was quiet when the first boats came back. An old man sat on the wall and counted them,
as he had done every morning since his own boat was sold. There were eleven, and one was missing.
He said nothing about it at first. The wind had turned during the night, and it was not unusual for
a crew to wait in the next bay until the sea was calm again. But when the church bell rang for the
second time, he stood up, walked down to the water and asked the others whether they had seen her.
Nobody had. "She left before us," said one of the fishermen, "and she went further out than we did."
The old man thanked him and looked at the sky. In the afternoon the whole village knew about it, and
by the evening they had decided to send two boats with lamps along the coast. It was the children
who saw the light first, far beyond the rocks, where no one had thought of looking.

To build a small house you need a plan, a dry place and more time than you expect. Begin with the
ground: remove the grass, make it level and let it rest for a few days. Then measure twice before
you cut anything. Most mistakes are made in the first hour, and they cost the most to repair.

def average(values):
    """Return the mean of a list of numbers, or zero if the list is empty."""
    if not values:
        return 0
    total = 0
    for value in values:
        total += value
    return total / len(values)
'''
