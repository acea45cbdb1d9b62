"""Asking for huge pages changes nothing that is stored, and fails nowhere."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from paceline.huge_pages import use_huge_pages


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's map of the process")
def test_large_tables_are_found_and_keep_what_they_hold() -> None:
    table = np.arange(64 << 17, dtype=np.int64)  # 64 MiB

    num_bytes = use_huge_pages()

    assert num_bytes >= table.nbytes - (4 << 20)
    assert np.array_equal(table, np.arange(64 << 17, dtype=np.int64))
