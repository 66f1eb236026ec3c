"""What the server asks the database; nothing without an Access."""
