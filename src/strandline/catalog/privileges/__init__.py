"""Privileges: `access` is what a user may do, `judgement` checks what a batch changed."""
