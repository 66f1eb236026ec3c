"""The server's queries, each limited by an Access."""
