"""The views in which the catalog shows itself.

`registry` holds them, `rows` and `roles` are the views, `synchronization` brings them into a
catalog.
"""

from strandline.catalog.system_views import roles, rows  # noqa: F401 - each registers its views
from strandline.catalog.system_views.registry import SYSTEM_VIEWS, Row, Rows, SystemView
from strandline.catalog.system_views.synchronization import (
    CreateSystemView,
    fingerprint,
    initialize_system_views,
    synchronize_system_views,
)

__all__ = [
    "SYSTEM_VIEWS",
    "CreateSystemView",
    "Row",
    "Rows",
    "SystemView",
    "fingerprint",
    "initialize_system_views",
    "synchronize_system_views",
]
