"""The routes, one module for each subject."""

PREFIX = "/api/v1"
