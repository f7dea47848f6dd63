"""The metastorage in etcd, through etcd's own JSON gateway.

`store` is the metastorage. It uses `invoke` to decide and commit a change, `leases` for leases,
`feed` for the watch, `chunks` for large values and `layout` for the keys. `gateway` sends
`operations` to the servers. `access` knows how to reach them.
"""
