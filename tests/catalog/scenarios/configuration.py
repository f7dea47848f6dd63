"""What setting a configuration parameter does, refuses and leaves alone."""

from __future__ import annotations

from strandline.catalog.commands import CreateCluster, SetConfiguration
from strandline.catalog.configuration import PARAMETERS
from strandline.errors import IllegalChange, InvalidInput, LimitExceeded
from tests.catalog.scenario import SCHEMA, Made, Nothing, Refused, Scenario, create_table

ONE_TABLE = SetConfiguration(name="max_tables", value="1")
SIZES = '{"small":{"cores":2,"memory":"4g"}}'

SCENARIOS = [
    Scenario(
        "a parameter is set",
        run=ONE_TABLE,
        expect=Made(["set_configuration"]),
        checks=[
            (lambda r: r.after.configuration("max_tables"), "1"),
            (lambda r: dict(r.actions[0][1]), {"name": "max_tables", "value": "1"}),
        ],
    ),
    Scenario(
        "a parameter goes back to its default",
        setup=[ONE_TABLE],
        run=SetConfiguration(name="max_tables", value=None),
        expect=Made(["set_configuration"]),
        checks=[(lambda r: r.after.configuration("max_tables"), None)],
    ),
    Scenario(
        "a parameter that is not set goes back to its default in vain",
        run=SetConfiguration(name="max_tables", value=None),
        expect=Nothing(),
    ),
    Scenario(
        "the same value again makes no version",
        setup=[ONE_TABLE],
        run=SetConfiguration(name="MAX_TABLES", value=" 1 "),
        expect=Nothing(),
    ),
    Scenario(
        "an unknown parameter is refused with those that there are",
        run=SetConfiguration(name="max_table", value="1"),
        expect=Refused(InvalidInput, f"known parameters are {', '.join(PARAMETERS)}"),
    ),
    Scenario(
        "a value that is not a text is refused",
        run=SetConfiguration(
            name="enforce_privileges",
            value=True,  # type: ignore[arg-type]  # what a program may give
        ),
        expect=Refused(
            InvalidInput,
            "parameter enforce_privileges cannot be True; give its value as a text",
        ),
    ),
    Scenario(
        "an unknown parameter does not go back to a default",
        run=SetConfiguration(name="nope", value=None),
        expect=Refused(InvalidInput, "'nope' is unknown"),
    ),
    *(
        Scenario(
            f"{name} cannot be {value!r}",
            run=SetConfiguration(name=name, value=value),
            expect=Refused(InvalidInput, f"parameter {name} cannot be {value!r}"),
        )
        for name, value in (
            ("max_tables", ""),
            ("max_tables", "-1"),
            ("max_tables", "many"),
            ("history_retention", "7 weeks"),
            ("history_retention", "-1s"),
            ("history_retention", "40000d"),
            ("metadata_staleness", "soon"),
            ("enforce_privileges", "maybe"),
            ("cluster_sizes", "[]"),
            ("cluster_sizes", '{"a":{"cores":0,"memory":"1g"}}'),
            ("cluster_sizes", '{"a":{"cores":1}}'),
            ("cluster_sizes", '{" ":{"cores":1,"memory":"1g"}}'),
        )
    ),
    Scenario(
        "no table is created beyond the limit",
        setup=[ONE_TABLE, SCHEMA, create_table("s.t")],
        run=create_table("s.u"),
        expect=Refused(LimitExceeded, "max_tables"),
    ),
    Scenario(
        "a table is created once the limit is raised in the same batch",
        setup=[ONE_TABLE, SCHEMA, create_table("s.t")],
        run=[SetConfiguration(name="max_tables", value="2"), create_table("s.u")],
        expect=Made(["set_configuration", "create_table"]),
    ),
    Scenario(
        "a size that a cluster has stays configured",
        setup=[CreateCluster(name="c", size="large")],
        run=SetConfiguration(name="cluster_sizes", value=SIZES),
        expect=Refused(IllegalChange, "cluster c uses it"),
    ),
    Scenario(
        "a size that is a default goes only when nobody has it",
        setup=[
            SetConfiguration(name="cluster_sizes", value='{"own":{"cores":1,"memory":"1g"}}'),
            CreateCluster(name="c", size="own"),
        ],
        run=SetConfiguration(name="cluster_sizes", value=None),
        expect=Refused(IllegalChange, "size own cannot be removed"),
    ),
    Scenario(
        "sizes that nobody has can go",
        setup=[CreateCluster(name="c", size="small")],
        run=SetConfiguration(name="cluster_sizes", value=SIZES),
        expect=Made(["set_configuration"]),
    ),
]
