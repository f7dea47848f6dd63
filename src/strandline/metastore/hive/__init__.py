"""The Hive Metastore protocol: names, filters, conversions and the service."""

from strandline.metastore.hive.service import HiveMetastoreService

__all__ = ["HiveMetastoreService"]
