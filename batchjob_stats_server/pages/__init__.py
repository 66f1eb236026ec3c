"""Web pages: the same answers as the API's, for people. They read, and change nothing."""
