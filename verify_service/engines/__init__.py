"""Engines that run a loop of their own behind ``verify_service.engine_backend``."""
