"""Compiled code is kept where a folder can be written, and nothing fails where none can."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.helm_tools import ROOT

PROGRAM = """
from draft_service.suffix_compiled import compiled_entry

@compiled_entry
def double(number):
    return 2 * number

print(double(21))
"""

PREFETCHING = """
import sys, numpy
from draft_service.suffix_compiled import compiled, compiled_entry, prefetch

@compiled
def total(array, index):
    prefetch(array, index)
    return array[0] + array[1]

@compiled_entry
def sum_of(array, other):
    result = 0
    for index in (-10**12, 0, 10**12):
        result = total(array, index) + total(other, index)
    return result

array, other = numpy.array([1, 2], numpy.int32), numpy.array([0, 4], numpy.int32)
count = sys.getrefcount(array)
print(sum_of(array, other), sys.getrefcount(array) - count)
"""


def run(folder: Path, *, cache: Path, home: Path) -> str:
    """Run the program in a process of its own; return what it prints."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    environment = {
        "NUMBA_CACHE_DIR": str(cache),
        "XDG_CACHE_HOME": str(home),
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
    }
    process = subprocess.run(  # noqa: S603
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=True
    )
    return process.stdout


def test_compiled_code_is_kept_in_the_chosen_folder(tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    printed = run(tmp_path, cache=cache, home=tmp_path / "home")

    assert printed == "42\n"
    assert list(cache.rglob("*.nbc"))


def test_any_index_may_be_prefetched_and_arrays_are_not_counted(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PREFETCHING)

    process = subprocess.run(  # noqa: S603
        [sys.executable, str(program)],
        env={"NUMBA_CACHE_DIR": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert process.stdout == "7 0\n"


def test_without_a_folder_to_write_each_process_compiles(tmp_path: Path) -> None:
    """As in a container whose files are read-only."""
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where folders should be")
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "__pycache__").write_text("a file where a folder should be")

    printed = run(folder, cache=blocked / "cache", home=blocked / "home")

    assert printed == "42\n"


@pytest.mark.parametrize("module", ["draft_service.registry", "draft_service.server"])
def test_only_the_suffix_drafter_costs_the_import_of_the_compiler(module: str) -> None:
    program = f"import sys, {module}; print('numba' in sys.modules)"

    process = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert process.stdout == "False\n"
