"""Privileges: what a user may do, the rules of each kind, and the judgement of a batch by them."""
