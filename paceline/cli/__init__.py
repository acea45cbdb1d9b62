"""The command ``paceline``. It starts services only as processes and imports none of them."""
