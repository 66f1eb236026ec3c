"""Where job records come from: one module per scheduler's account."""
