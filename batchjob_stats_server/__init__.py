"""The server: a JSON API and web pages on the database, with access rights."""
