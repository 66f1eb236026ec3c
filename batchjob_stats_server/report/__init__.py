"""Reports: how well a job used its allocation, and what its user could improve."""
