"""Web pages. They show the data of the API; only a few of them change anything."""
