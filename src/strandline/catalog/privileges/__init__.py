"""Who may do what: `access` by one catalog, `judgement` of what a change did.

`ownership` finds what somebody owns, `defaults` what a new object begins with.
"""
