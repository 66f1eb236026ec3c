"""What a job made of what it had, and what its user could do better next time."""
