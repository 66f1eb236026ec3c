"""A small HTTP/1.1 server for scrapes: bounded threads, and no client can hold one of them."""
