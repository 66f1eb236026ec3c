"""Node energy and who used it: meters, their choice, and the split over jobs."""
