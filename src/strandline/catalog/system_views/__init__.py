"""The views in which the catalog shows itself.

`rows` are the views, `synchronization` brings them into a catalog.
"""

from strandline.catalog.system_views.rows import Row, SystemView, system_view
from strandline.catalog.system_views.synchronization import (
    CreateSystemView,
    declared_views,
    fingerprint,
    initialize_system_views,
    synchronize_system_views,
)

__all__ = [
    "CreateSystemView",
    "Row",
    "SystemView",
    "declared_views",
    "fingerprint",
    "initialize_system_views",
    "synchronize_system_views",
    "system_view",
]
