"""What an agent may do. Nothing that is not here."""
