"""The draft service: streams trees of likely tokens. It holds only caches and no torch."""
