"""The verify service: owns the KV cache and the truth. The only importer of torch."""
