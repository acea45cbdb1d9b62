"""Target models: what the engine verifies drafts with."""
