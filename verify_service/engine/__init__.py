"""The step engine: schedule, forward, accept, commit. It knows no transport."""
