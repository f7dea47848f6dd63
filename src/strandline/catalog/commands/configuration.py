"""The command that sets a configuration parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.catalog.configuration import CLUSTER_SIZES, ClusterSize, parameter
from strandline.catalog.planning import Planning
from strandline.errors import IllegalChange
from strandline.model.bookkeeping import SystemConfiguration


@dataclass(frozen=True, slots=True, kw_only=True)
class SetConfiguration:
    """Set the parameter ``name`` to what ``value`` spells; None goes back to the default."""

    name: str
    value: str | None

    def plan(self, planning: Planning) -> None:
        """Raises `InvalidInput` for an unknown name or a bad value, `IllegalChange`."""
        known = parameter(self.name)
        text = None if self.value is None else self.value.strip()
        effective = known.default if text is None else text
        value = None if effective is None else known.read(effective)
        if known is CLUSTER_SIZES:
            _refuse_to_drop_used_sizes(planning, value or {})
        present = planning.catalog.configuration(known.name)
        with planning.entry("set_configuration", name=known.name, value=text) as transaction:
            if text is not None:
                transaction.put(SystemConfiguration(known.name, text))
            elif present is not None:
                transaction.delete("system_configuration", known.name)


def _refuse_to_drop_used_sizes(planning: Planning, sizes: Mapping[str, ClusterSize]) -> None:
    catalog = planning.catalog
    for cluster in catalog.clusters():
        used = {
            replica.size: f"replica {replica.name} of " for replica in catalog.replicas(cluster.id)
        }
        if cluster.size is not None:
            used[cluster.size] = ""
        for size, who in used.items():
            if size not in sizes:
                raise IllegalChange(
                    f"size {size} cannot be left out of {CLUSTER_SIZES.name}: {who}cluster "
                    f"{cluster.name} has it; give that another size first"
                )
