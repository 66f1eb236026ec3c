"""What this node offers to each collector, and what is missing."""
