"""Taking versions back: `command` does it, `reading` finds what it needs in the log.

`net` says what a version did as a whole, `rules` what of it may be taken back, and to what; `words`
is how the history and a refusal name things.
"""
