"""Undoing versions: `command` does it, `reading` reads what it needs from the log.

`net` computes the net effect of a version, and `rules` has the special cases of some kinds.
"""
