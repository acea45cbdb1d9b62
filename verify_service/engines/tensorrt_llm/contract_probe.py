"""
Compares the installed package with the recorded contract by inspection; it runs none of it.

A difference names the member, so that a refusal says what to look at in the release notes.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

from verify_service.engines.tensorrt_llm.recorded_contract import Contract


@dataclass(frozen=True, slots=True)
class Difference:
    """One member that is not as recorded."""

    member: str
    what: str

    def __str__(self) -> str:
        return f"{self.member}: {self.what}"


def differences(contract: Contract) -> list[Difference]:
    """Return everything in which the installed package differs from ``contract``."""
    return [
        *(found for name in contract.signatures for found in _signature(contract, name)),
        *(found for name in contract.attributes for found in _attributes(contract, name)),
        *(found for name in contract.absent for found in _absent(contract, name)),
    ]


def resolve(name: str) -> object:
    """Return the object that ``module:object.member`` names; raises ``LookupError``."""
    module_name, _, path = name.partition(":")
    try:
        found: object = import_module(module_name)
    except Exception as error:  # a package that fails to import can raise anything
        raise LookupError(f"module {module_name} cannot be imported ({error})") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise LookupError("is missing")
        found = getattr(found, part)
    return found


def accepted_parameters(function: object) -> tuple[set[str], bool]:
    """Return the named parameters of a callable and whether it takes any other keyword."""
    if not callable(function):
        return set(), False
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return set(parameters), takes_any


def _signature(contract: Contract, name: str) -> Iterator[Difference]:
    try:
        accepted, takes_any = accepted_parameters(resolve(name))
    except LookupError as error:
        yield Difference(name, str(error))
        return
    except (TypeError, ValueError):
        return  # compiled code without a signature: nothing can be compared
    for parameter in contract.signatures[name]:
        if parameter not in accepted and not takes_any:
            yield Difference(name, f"takes no {parameter}")


def _attributes(contract: Contract, name: str) -> Iterator[Difference]:
    try:
        known = _member_names(resolve(name))
    except LookupError as error:
        yield Difference(name, str(error))
        return
    for attribute in contract.attributes[name]:
        if attribute not in known:
            yield Difference(f"{name}.{attribute}", "is missing")


def _absent(contract: Contract, name: str) -> Iterator[Difference]:
    try:
        known = _member_names(resolve(name))
    except LookupError:
        return
    for attribute in contract.absent[name]:
        if attribute in known:
            yield Difference(f"{name}.{attribute}", "exists, which the recorded release lacks")


def _member_names(found: object) -> set[str]:
    """Names of an instance: class members, declared fields, and what methods assign to self."""
    names = set(dir(found))
    if not inspect.isclass(found):
        return names
    for kind in found.__mro__[:-1]:
        names |= set(getattr(kind, "__annotations__", ()))
        names |= set(getattr(kind, "model_fields", None) or ())
        names |= _assigned(kind)
    if dataclasses.is_dataclass(found):
        names |= {field.name for field in dataclasses.fields(found)}
    return names


def _assigned(kind: type) -> set[str]:
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):
        return set()  # compiled: its members are in dir() already
    return set(re.findall(r"\bself\.(\w+)\b(?:\s*:[^=\n]+)?\s*=(?!=)", source))
