"""Taking versions back: `command` does it, `reading` finds what it needs in the log.

`net` says what a version did as a whole, and `rules` what that means for some kinds of objects.
"""
