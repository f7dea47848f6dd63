"""Privileges: what a user may do, the rules of each kind, and the check of a batch by them."""
