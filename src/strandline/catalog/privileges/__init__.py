"""Who may do what: `access` by one catalog, `judgement` of what a change did."""
