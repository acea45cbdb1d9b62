"""What a field of a message takes, in words: for who gave it something else."""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import FieldDescriptor

_INTEGERS: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_REALS: Final = {FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE}


def wanted_value(field: FieldDescriptor) -> str:
    """Return what a field takes: "a list of integers from 0 to 4294967295"."""
    nested = field.message_type
    if nested is not None and nested.GetOptions().map_entry:
        key, value = (nested.fields_by_name[name] for name in ("key", "value"))
        return f"a mapping from {_several(key)} to {_several(value)}"
    if nested is not None and len(nested.fields) == 1:
        return wanted_value(nested.fields[0])
    is_repeated = isinstance(field.default_value, list)
    return f"a list of {_several(field)}" if is_repeated else _one(field)


def _one(field: FieldDescriptor) -> str:
    if field.cpp_type in _INTEGERS:
        least, most = _INTEGERS[field.cpp_type]
        return f"an integer from {least} to {most}"
    if field.cpp_type in _REALS:
        return "a number"
    return "True or False" if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL else "a text"


def _several(field: FieldDescriptor) -> str:
    if field.cpp_type in _INTEGERS:
        least, most = _INTEGERS[field.cpp_type]
        return f"integers from {least} to {most}"
    return "numbers" if field.cpp_type in _REALS else "texts"
