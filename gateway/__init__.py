"""The gateway: the door for applications. No torch here."""
