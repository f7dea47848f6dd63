"""Processes that a benchmark starts: other programs to compare with, and client processes."""
