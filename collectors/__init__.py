"""Where the numbers come from: one module per source."""
