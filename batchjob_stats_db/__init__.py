"""Every job on record, with what it used."""
