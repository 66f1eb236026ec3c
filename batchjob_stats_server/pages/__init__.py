"""Web pages: the API's answers for people. Most of them only read."""
