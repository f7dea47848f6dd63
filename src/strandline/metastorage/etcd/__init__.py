"""The metastorage in etcd, through etcd's own JSON gateway.

`store` is the metastorage. Under it: `invoke` decides and commits a change, `leases` hold, `feed`
watches, `chunks` keep large values, `layout` says which key means what. `gateway` speaks to the
servers, in the `messages` that they send.
"""
