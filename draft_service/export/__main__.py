"""Runs the command; see ``command.py``."""

from __future__ import annotations

import sys

from draft_service.export.command import main

sys.exit(main())
