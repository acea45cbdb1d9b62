"""
A CUDA device that computes nothing, for machines without one: torch's fake tensors.

On it an operation between host and device tensors fails, and so does whatever would make the host
wait for a number (``item``, ``nonzero``, branching on a tensor) or copy within a captured region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CUDA = torch.device("cuda", 0)
ModelT = TypeVar("ModelT")
_COPIES = ("to", "_to_copy", "copy_")


class _BoundOperations(TorchFunctionMode):
    """Stands in for what torch's bindings do on the host and a build without CUDA cannot."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        del types
        if func in _BINDINGS:
            return _BINDINGS[func](*args)
        result = func(*args, **(kwargs or {}))
        if func is torch.tensor:
            result.constant = None  # known numbers would be computed with, which needs a device
        return result


class NoCopies(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has none
    """Refuses copies between host and device: in a captured region they are not permitted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        del types
        result = func(*args, **(kwargs or {}))
        if func.__name__.partition(".")[0] in _COPIES:
            for each in args[:2]:
                is_array = isinstance(each, torch.Tensor) and each.dim() > 0
                if is_array and each.device != result.device:
                    raise RuntimeError(f"a copy from {each.device} to {result.device}")
        return result


class _Moved(TorchFunctionMode):
    """Makes ``deepcopy`` put every tensor on the fake device."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self._mode = mode

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        del types
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            return memo.setdefault(id(tensor), self._empty_like(tensor))
        if func is torch.Tensor.clone:  # what a parameter's copy does
            return self._empty_like(args[0])
        return func(*args, **(kwargs or {}))

    def _empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._mode:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=CUDA)


class FakeCuda:
    """The device."""

    def __init__(self) -> None:
        self._mode = FakeTensorMode()

    def moved(self, models: ModelT) -> ModelT:
        """Return a copy of models whose tensors, plain attributes included, are on the device."""
        with torch.inference_mode(), _Moved(self._mode):
            return deepcopy(models)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run on the device what asks for it."""
        with torch.inference_mode(), self._mode, _BoundOperations():
            yield


class FakeEvent:
    """An event of the device, which is never done."""

    def record(self, stream: object = None) -> None:
        """Take note of nothing."""
        del stream

    def query(self) -> bool:
        """Return False."""
        return False


def _taken(tensor: torch.Tensor, index: object) -> torch.Tensor:
    view, indices = _viewed(tensor, index)
    return torch.ops.aten.index.Tensor(view, indices) if any_of(indices) else view


def _put(tensor: torch.Tensor, index: object, value: torch.Tensor | float) -> None:
    view, indices = _viewed(tensor, index)
    values = value if isinstance(value, torch.Tensor) else view.new_full((), value)
    if any_of(indices):
        torch.ops.aten.index_put_.default(view, indices, values)
    else:
        view.copy_(values)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_contiguous():
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


_BINDINGS: dict[Callable[..., Any], Callable[..., object]] = {
    torch.Tensor.__getitem__: _taken,
    torch.Tensor.__setitem__: _put,
    torch.Tensor.__invert__: torch.bitwise_not,
    torch.Tensor.contiguous: _dense,
    torch.Tensor.copy_: lambda tensor, values, *_: torch.ops.aten.copy_.default(tensor, values),
    torch.Tensor.pin_memory: lambda tensor: tensor,
}
"""Bindings that look for the device themselves, which a build without CUDA cannot."""


def any_of(indices: Sequence[torch.Tensor | None]) -> bool:
    """Return whether a dimension is indexed by a tensor."""
    return any(each is not None for each in indices)


def _viewed(tensor: torch.Tensor, index: object) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """Return a view after numbers, slices and new axes, and the tensors that index the rest."""
    items = index if isinstance(index, tuple) else (index,)
    if Ellipsis in [each for each in items if not isinstance(each, torch.Tensor)]:
        place = next(at for at, each in enumerate(items) if each is Ellipsis)
        num_missing = tensor.dim() - sum(each is not None for each in items) + 1
        items = (*items[:place], *(slice(None),) * num_missing, *items[place + 1 :])
    indices: list[torch.Tensor | None] = []
    for item in items:
        dim = len(indices)
        if isinstance(item, int):
            tensor = tensor.select(dim, item)
            continue
        if item is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(item, slice):
            tensor = torch.ops.aten.slice.Tensor(tensor, dim, item.start, item.stop, item.step or 1)
        elif item.device != tensor.device:
            raise RuntimeError(f"an index on {item.device} into a tensor on {tensor.device}")
        indices.append(item if isinstance(item, torch.Tensor) else None)
    return tensor, indices
