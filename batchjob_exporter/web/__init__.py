"""A small HTTP/1.1 server for scrapes, with bounded threads that no client can block."""
