"""What Paceline's services agree on, the public client and the command line. No torch here."""
