"""Checks the house rules that no other linter knows; each finding ends with a tip."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
GENERATED = "paceline/v1/"
UNDOCUMENTED_FOLDERS = ("tests/",)
"""Here names say what a docstring would."""

FORBIDDEN_NAME = re.compile(
    r"(utils?|common|helpers?|misc|manager|core|base|shared|stuff)\.py|\w+_v\d+\.py"
)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|home|Users)/\w")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def findings(root: Path = ROOT) -> list[str]:
    """Return what breaks a rule in the files that git knows or would add."""
    found: list[str] = []
    for name in _file_names(root):
        try:
            text = (root / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        found.extend(f"{name}:{finding}" for finding in text_findings(text))
        if name.endswith(".py") and not name.startswith(GENERATED):
            found.extend(f"{name}:{finding}" for finding in python_findings(name, text))
    return found


def text_findings(text: str) -> Iterator[str]:
    """Yield findings that apply to every text file, as ``line: what; tip``."""
    for number, line in enumerate(text.splitlines(), 1):
        if MACHINE_PATH.search(line):
            yield f"{number}: names a path of one machine; make it relative or a setting"


def python_findings(name: str, text: str) -> Iterator[str]:
    """Yield findings of a Python file, as ``line: what; tip``."""
    if FORBIDDEN_NAME.fullmatch(Path(name).name):
        yield "1: the file name says nothing; name it for the noun it holds"
    if (lines := text.count("\n")) > MAX_FILE_LINES:
        yield f"1: {lines} lines, at most {MAX_FILE_LINES}; split it by noun"
    tree = ast.parse(text)
    yield from _long_functions(tree)
    yield from _undocumented_settings(tree)
    if not name.startswith(UNDOCUMENTED_FOLDERS):
        yield from _undocumented(tree)


def main() -> int:
    """Print the findings and return 1 if there are any."""
    found = findings()
    for finding in found:
        sys.stderr.write(f"{finding}\n")
    return 1 if found else 0


def _file_names(root: Path) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)  # noqa: S603
    return listed.stdout.splitlines()


def _long_functions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, Function) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                tip = f"at most {MAX_FUNCTION_LINES}; extract a step that has a name"
                yield f"{node.lineno}: {node.name} has {length} lines, {tip}"


def _undocumented_settings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name.endswith("Settings"):
            for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
                if _is_field(statement) and not _is_text(following):
                    tip = "say below it what it does, its unit and why this default"
                    yield f"{statement.lineno}: a field of {node.name} has no docstring; {tip}"


def _undocumented(tree: ast.Module) -> Iterator[str]:
    tip = "say in one sentence what it is or does"
    if tree.body and ast.get_docstring(tree) is None:
        yield f"1: the module has no docstring; {tip}"
    for node in _public_definitions(tree.body):
        if ast.get_docstring(node) is None:
            yield f"{node.lineno}: {node.name} has no docstring; {tip}"


def _public_definitions(body: list[ast.stmt]) -> Iterator[ast.ClassDef | Function]:
    for node in body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public_definitions(node.body)


def _is_field(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and not statement.target.id.startswith("_")
        and statement.target.id != "model_config"
    )


def _is_text(statement: ast.stmt | None) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


if __name__ == "__main__":
    sys.exit(main())
