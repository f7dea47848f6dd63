"""The Hive Metastore protocol: names, filters, conversions and the service."""
