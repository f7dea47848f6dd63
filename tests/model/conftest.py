from __future__ import annotations

from hypothesis import settings

# A time limit for each example would fail by chance on a loaded machine.
settings.register_profile("without_deadline", deadline=None)
settings.load_profile("without_deadline")
