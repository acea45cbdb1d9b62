"""The generated stubs of ``protos/paceline/v1``; ``make protos`` writes them."""
