"""Who may see which jobs: the JSON API over the records and measurements."""
