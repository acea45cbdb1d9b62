"""Learned step costs across restarts: one JSON file per folder, valid for one model and device."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import structlog

from paceline.errors import ConfigurationError
from verify_service.engine.cost_table import CostRecord, CostTable
from verify_service.settings import VerifySettings
from verify_service.targets.target import TargetInfo

log: structlog.stdlib.BoundLogger = structlog.get_logger()

FILE_NAME = "step-costs.json"
FORMAT = 1
MAX_RECORDS = 100_000


def cost_key(settings: VerifySettings, info: TargetInfo) -> dict[str, str]:
    """Return what costs depend on; a file with another key is of no use."""
    return {
        "model": info.name,
        "tokenizer": info.tokenizer_fingerprint,
        "vocab_size": str(info.vocab_size),
        "engine": info.engine,
        "weights": settings.weights,
        "device": _device(settings),
        "num_threads": str(settings.num_threads or os.cpu_count() or 1),
    }


class CostState:
    """The file of one verifier's cost table."""

    def __init__(self, folder: Path, key: Mapping[str, str]) -> None:
        self._path = folder / FILE_NAME
        self._key = dict(key)

    def restore(self, costs: CostTable) -> bool:
        """
        Fill the table from the file and return whether it could be used.

        A file of another model or device, or one that cannot be read, is refused with a log line:
        the costs are learned anew and the file is replaced when they are kept.
        """
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            records = self._checked(content)
        except FileNotFoundError:
            return False
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            log.warning("step_costs_unreadable", path=str(self._path), cause=str(error))
            return False
        if records is None:
            return False
        costs.restore(records)
        log.info("step_costs_restored", path=str(self._path), num_records=len(records))
        return True

    def keep(self, costs: CostTable) -> None:
        """Write the table, all of it or nothing; a folder that cannot be written is logged."""
        records = [astuple(record) for record in costs.records()]
        content = json.dumps({"format": FORMAT, "key": self._key, "records": records})
        fresh = self._path.with_suffix(".new")
        try:
            with fresh.open("w", encoding="utf-8") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError as error:
            log.warning("step_costs_not_kept", path=str(self._path), cause=str(error))

    def _checked(self, content: Mapping[str, Any]) -> list[CostRecord] | None:
        if content["format"] != FORMAT or content["key"] != self._key:
            kept = content["key"] if isinstance(content["key"], dict) else {}
            names = sorted(name for name in self._key if kept.get(name) != self._key[name])
            log.warning("step_costs_refused", path=str(self._path), other=names or ["format"])
            return None
        records = [
            CostRecord(int(bucket), int(num_rows), float(seconds), int(count))
            for bucket, num_rows, seconds, count in content["records"][:MAX_RECORDS]
        ]
        if not all(0 < each.seconds < 3600 and each.num_rows > 0 < each.count for each in records):
            raise ValueError("a cost is out of range")
        return records


def cost_state(settings: VerifySettings, info: TargetInfo) -> CostState | None:
    """Return where costs are kept; raises ``ConfigurationError`` if that is no folder."""
    if settings.state is None:
        return None
    try:
        settings.state.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"setting state: {settings.state}: {error.strerror}; name a folder that can be written"
        ) from None
    return CostState(settings.state, cost_key(settings, info))


def _device(settings: VerifySettings) -> str:
    if settings.target == "simulated":
        return f"{settings.simulated_gpu} x {settings.simulated_tensor_parallel}, simulated"
    if settings.device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name(settings.device))
    return f"{platform.machine()} {_processor()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
