"""The API's routes, one module for each subject."""

PREFIX = "/api/v1"
