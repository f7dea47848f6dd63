"""Who may do what: `access` by one catalog, `judgement` of what a change did.

`defaults` are the privileges that a new object begins with.
"""
