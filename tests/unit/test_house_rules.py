from __future__ import annotations

import pytest

from tools import house_rules

DOCUMENTED = '"""A module."""\n'


def test_repository_keeps_the_house_rules() -> None:
    assert house_rules.findings() == []


@pytest.mark.parametrize("name", ["utils.py", "gateway/common.py", "core.py", "worker_v2.py"])
def test_file_name_that_says_nothing_is_found(name: str) -> None:
    assert any("file name" in finding for finding in house_rules.python_findings(name, DOCUMENTED))


def test_file_named_for_its_noun_is_fine() -> None:
    assert list(house_rules.python_findings("verify_service/block_manager.py", DOCUMENTED)) == []


def test_long_file_is_found() -> None:
    text = DOCUMENTED + "X = 1\n" * house_rules.MAX_FILE_LINES

    assert any("401 lines" in finding for finding in house_rules.python_findings("a.py", text))


def test_long_function_is_found() -> None:
    text = DOCUMENTED + "def _f() -> None:\n" + "    x = 1\n" * house_rules.MAX_FUNCTION_LINES

    assert any(
        "_f has 61 lines" in finding for finding in house_rules.python_findings("a.py", text)
    )


def test_settings_field_without_docstring_is_found() -> None:
    text = (
        DOCUMENTED
        + 'class Settings:\n    """S."""\n    port: int = 1\n    """Port."""\n    host: str\n'
    )

    found = list(house_rules.python_findings("a.py", text))

    assert len(found) == 1
    assert found[0].startswith("6: a field of Settings")


@pytest.mark.parametrize("body", ["def f() -> None: ...\n", "class C:\n    pass\n"])
def test_public_definition_without_docstring_is_found(body: str) -> None:
    assert any("no docstring" in f for f in house_rules.python_findings("a.py", DOCUMENTED + body))
    assert not list(house_rules.python_findings("tests/a.py", DOCUMENTED + body))


def test_path_of_one_machine_is_found() -> None:
    assert list(house_rules.text_findings("see " + "/home" + "/someone/file"))
    assert not list(house_rules.text_findings("see docs/home/page and tests/work/a"))
