"""What commands on clusters and their replicas do, refuse and leave alone."""

from __future__ import annotations

from strandline.catalog.commands import (
    AlterCluster,
    AlterClusterReplica,
    CommentOn,
    CreateCluster,
    CreateClusterReplica,
    DropCluster,
    DropClusterReplica,
    RenameCluster,
    RenameClusterReplica,
    SetConfiguration,
    SetOwner,
)
from strandline.errors import AlreadyExists, IllegalChange, InvalidInput, ObjectNotFound
from strandline.model.privileges import ObjectKind
from tests.catalog.scenario import Made, Nothing, Refused, Result, Scenario

MANAGED = CreateCluster(name="c", size="small", replication_factor=2)
PLAIN = CreateCluster(name="p")
REPLICA = CreateClusterReplica(
    cluster="p",
    name="one",
    size="small",
    address="spark://host:7077",
    spark_ui="http://host:4040",
    event_log="file:/logs",
)


def replicas(result: Result) -> list[str]:
    return [
        f"{cluster.name}.{replica.name} {replica.size} {replica.address}"
        for cluster in result.after.clusters()
        for replica in result.after.replicas(cluster.id)
    ]


def introspection(result: Result) -> list[str]:
    return [
        f"{replica.name} {index.name} {index.address}"
        for cluster in result.after.clusters()
        for replica in result.after.replicas(cluster.id)
        for index in result.after.introspection_indexes(replica.id)
    ]


def owners(result: Result) -> list[str]:
    objects = []
    for cluster in result.after.clusters():
        objects.append(cluster)
        for replica in result.after.replicas(cluster.id):
            objects += [replica, *result.after.introspection_indexes(replica.id)]
    return [f"{item.name} {item.owner}" for item in objects]


def first_id_kept(result: Result) -> bool:
    pair = [
        catalog.replicas(catalog.clusters()[0].id)[0].id
        for catalog in (result.before, result.after)
    ]
    return bool(pair[0] == pair[1])


def address(text: str, *, right: bool) -> Scenario:
    return Scenario(
        f"an address can {'' if right else 'not '}be {text!r}",
        setup=[PLAIN],
        run=CreateClusterReplica(cluster="p", name="r", size="small", address=text),
        expect=Made() if right else Refused(InvalidInput, "a replica cannot be at"),
    )


SCENARIOS = [
    Scenario(
        "a managed cluster comes with its replicas",
        run=MANAGED,
        expect=Made(["create_cluster", "create_cluster_replica", "create_cluster_replica"]),
        checks=[(replicas, ["c.r1 small local[2]", "c.r2 small local[2]"])],
    ),
    Scenario(
        "replicas of a managed cluster are where it says",
        run=CreateCluster(name="c", size="large", address="sc://host"),
        expect=Made(),
        checks=[(replicas, ["c.r1 large sc://host"])],
    ),
    Scenario(
        "an unmanaged cluster begins empty",
        run=PLAIN,
        expect=Made(["create_cluster"]),
        checks=[(replicas, [])],
    ),
    Scenario(
        "a cluster is created once",
        setup=[PLAIN],
        run=CreateCluster(name="P"),
        expect=Refused(AlreadyExists, "cluster p already exists"),
    ),
    Scenario(
        "IF NOT EXISTS leaves a cluster and its replica alone",
        setup=[PLAIN, REPLICA],
        run=[
            CreateCluster(name="p", size="small", if_not_exists=True),
            CreateClusterReplica(
                cluster="p", name="ONE", size="large", address="yarn", if_not_exists=True
            ),
        ],
        expect=Nothing(),
    ),
    Scenario(
        "the size of a cluster without replicas is not removed",
        setup=[CreateCluster(name="c", size="small", replication_factor=0)],
        run=SetConfiguration(name="cluster_sizes", value="{}"),
        expect=Refused(IllegalChange, "size small cannot be removed from cluster_sizes: cluster c"),
    ),
    Scenario(
        "a size that is not configured is refused",
        run=CreateCluster(name="c", size="huge"),
        expect=Refused(InvalidInput, "cluster_sizes has small, medium, large"),
    ),
    *(
        Scenario(
            f"{what} is refused, though there is no replica that it would be for",
            setup=[CreateCluster(name="c", size="small", replication_factor=0)],
            run=command,
            expect=Refused(InvalidInput, says),
        )
        for what, command, says in (
            (
                "an unknown size of a new cluster",
                CreateCluster(name="d", size="huge", replication_factor=0),
                "cluster_sizes has",
            ),
            (
                "a bad address of a new cluster",
                CreateCluster(name="d", size="small", replication_factor=0, address="x"),
                "a replica cannot be at",
            ),
            ("an unknown size", AlterCluster(name="c", size="huge"), "cluster_sizes has"),
            ("a bad address", AlterCluster(name="c", address="x"), "a replica cannot be at"),
            ("a number below 0", AlterCluster(name="c", replication_factor=-1), "-1 replicas"),
            ("a number above 64", AlterCluster(name="c", replication_factor=65), "65 replicas"),
        )
    ),
    *(
        Scenario(
            f"{what} of a replica is refused",
            setup=[PLAIN, REPLICA],
            run=command,
            expect=Refused(InvalidInput, says),
        )
        for what, command, says in (
            (
                "an unknown size",
                AlterClusterReplica(cluster="p", replica="one", size="huge"),
                "cluster_sizes has",
            ),
            (
                "a bad address",
                AlterClusterReplica(cluster="p", replica="one", address="x"),
                "a replica cannot be at",
            ),
        )
    ),
    *(
        Scenario(
            f"a replica of a managed cluster cannot {what}",
            setup=[MANAGED],
            run=command,
            expect=Refused(IllegalChange, "is managed"),
        )
        for what, command in (
            ("grow", AlterClusterReplica(cluster="c", replica="r1", size="large")),
            ("move", AlterClusterReplica(cluster="c", replica="r1", address="yarn")),
            ("be given away", AlterClusterReplica(cluster="c", replica="r1", owner="eve")),
            ("be renamed", RenameClusterReplica(cluster="c", replica="r1", new_name="x")),
        )
    ),
    Scenario(
        "a replica of a missing cluster",
        run=REPLICA,
        expect=Refused(ObjectNotFound, "cluster 'p' does not exist"),
    ),
    Scenario(
        "a size that was configured is taken",
        setup=[
            SetConfiguration(name="cluster_sizes", value='{"tiny":{"cores":1,"memory":"512m"}}')
        ],
        run=CreateCluster(name="c", size="tiny"),
        expect=Made(),
        checks=[(replicas, ["c.r1 tiny local[1]"])],
    ),
    Scenario(
        "a replication factor below 0 is refused",
        run=CreateCluster(name="c", size="small", replication_factor=-1),
        expect=Refused(InvalidInput, "cannot have -1 replicas"),
    ),
    Scenario(
        "an address of an unmanaged cluster is refused",
        run=CreateCluster(name="c", address="yarn"),
        expect=Refused(InvalidInput, "has no size"),
    ),
    Scenario(
        "replicas of a managed cluster get its new size",
        setup=[MANAGED],
        run=AlterCluster(name="c", size="large"),
        expect=Made(["alter_cluster", "alter_cluster_replica", "alter_cluster_replica"]),
        checks=[
            (replicas, ["c.r1 large local[8]", "c.r2 large local[8]"]),
            (first_id_kept, True),
        ],
    ),
    Scenario(
        "a managed cluster grows beside the replicas that it has",
        setup=[CreateCluster(name="c", size="small", address="sc://a")],
        run=AlterCluster(name="c", replication_factor=2),
        expect=Made(["alter_cluster", "create_cluster_replica"]),
        checks=[(replicas, ["c.r1 small sc://a", "c.r2 small sc://a"]), (first_id_kept, True)],
    ),
    Scenario(
        "a managed cluster shrinks from its end",
        setup=[MANAGED],
        run=AlterCluster(name="c", replication_factor=1),
        expect=Made(["alter_cluster", "drop_cluster_replica"]),
        checks=[(replicas, ["c.r1 small local[2]"])],
    ),
    Scenario(
        "a managed cluster of more than nine replicas shrinks from its end",
        setup=[CreateCluster(name="c", size="small", replication_factor=11)],
        run=AlterCluster(name="c", replication_factor=9),
        expect=Made(["alter_cluster", "drop_cluster_replica", "drop_cluster_replica"]),
        checks=[
            (lambda r: [line.split()[0] for line in replicas(r)], [f"c.r{n}" for n in range(1, 10)])
        ],
    ),
    Scenario(
        "a managed cluster can be switched off",
        setup=[MANAGED],
        run=AlterCluster(name="c", replication_factor=0),
        expect=Made(),
        checks=[(replicas, [])],
    ),
    Scenario(
        "a managed cluster moves",
        setup=[MANAGED],
        run=AlterCluster(name="c", address="k8s://https://host:6443"),
        expect=Made(["alter_cluster_replica", "alter_cluster_replica"]),
        checks=[(lambda r: {line.split()[2] for line in replicas(r)}, {"k8s://https://host:6443"})],
    ),
    Scenario(
        "a managed cluster moves and grows at once",
        setup=[CreateCluster(name="c", size="small", address="sc://a")],
        run=AlterCluster(name="c", replication_factor=2, address="sc://b"),
        expect=Made(["alter_cluster", "alter_cluster_replica", "create_cluster_replica"]),
        checks=[(replicas, ["c.r1 small sc://b", "c.r2 small sc://b"])],
    ),
    Scenario(
        "a managed cluster comes home",
        setup=[CreateCluster(name="c", size="small", address="sc://a")],
        run=AlterCluster(name="c", address=""),
        expect=Made(["alter_cluster_replica"]),
        checks=[(replicas, ["c.r1 small local[2]"])],
    ),
    Scenario(
        "an unmanaged cluster gets another owner, and its replicas keep theirs",
        setup=[PLAIN, REPLICA],
        run=AlterCluster(name="p", owner="eve"),
        expect=Made(["alter_cluster"]),
        checks=[(owners, ["p eve", "one ann", "event_log ann", "spark_ui ann"])],
    ),
    Scenario(
        "a cluster belongs to whom it names, and its replicas too",
        run=CreateCluster(name="c", size="small", owner="eve", replication_factor=64),
        expect=Made(),
        checks=[(lambda r: set(owners(r)), {"c eve", *(f"r{n} eve" for n in range(1, 65))})],
    ),
    Scenario(
        "an alter of a cluster without a difference makes no version",
        setup=[MANAGED],
        run=AlterCluster(name="c", size="small", replication_factor=2),
        expect=Nothing(),
    ),
    Scenario(
        "an unmanaged cluster gets no size",
        setup=[PLAIN],
        run=AlterCluster(name="p", size="small"),
        expect=Refused(IllegalChange, "is unmanaged"),
    ),
    Scenario(
        "a renamed cluster keeps its replicas",
        setup=[MANAGED],
        run=RenameCluster(name="c", new_name="d"),
        expect=Made(["rename_cluster"]),
        checks=[(replicas, ["d.r1 small local[2]", "d.r2 small local[2]"])],
    ),
    Scenario(
        "a cluster does not take another's name",
        setup=[MANAGED, PLAIN],
        run=RenameCluster(name="c", new_name="P"),
        expect=Refused(AlreadyExists, "cluster p already exists"),
    ),
    Scenario(
        "a dropped cluster takes its own replicas with it",
        setup=[
            MANAGED,
            PLAIN,
            REPLICA,
            CommentOn(kind=ObjectKind.CLUSTER_REPLICA, name="p.one", text="x"),
            CommentOn(kind=ObjectKind.CLUSTER, name="p", text="y"),
        ],
        run=DropCluster(name="p"),
        expect=Made(["drop_cluster_replica", "drop_cluster"]),
        checks=[
            (replicas, ["c.r1 small local[2]", "c.r2 small local[2]"]),
            (lambda r: r.after.contents.count("introspection_index"), 0),
            (lambda r: r.after.contents.count("cluster_replica"), 2),
            (lambda r: r.after.contents.count("comment"), 0),
        ],
    ),
    Scenario(
        "a missing cluster is not dropped",
        run=DropCluster(name="c"),
        expect=Refused(ObjectNotFound, "cluster 'c'"),
    ),
    Scenario(
        "IF EXISTS covers a missing cluster and replica",
        run=[
            DropCluster(name="c", if_exists=True),
            AlterCluster(name="c", size="small", if_exists=True),
            RenameCluster(name="c", new_name="d", if_exists=True),
            DropClusterReplica(cluster="c", replica="r", if_exists=True),
            AlterClusterReplica(cluster="c", replica="r", size="small", if_exists=True),
            RenameClusterReplica(cluster="c", replica="r", new_name="s", if_exists=True),
        ],
        expect=Nothing(),
    ),
    # -- replicas
    Scenario(
        "a replica is created where it says",
        setup=[PLAIN],
        run=REPLICA,
        expect=Made(["create_cluster_replica"]),
        checks=[
            (replicas, ["p.one small spark://host:7077"]),
            (introspection, ["one event_log file:/logs", "one spark_ui http://host:4040"]),
        ],
    ),
    *(
        address(text, right=True)
        for text in (
            "local",
            "local[*]",
            "local[4]",
            "local[4,2]",
            "spark://a:7077,b:7077",
            "sc://host:15002/;use_ssl=true",
            "k8s://host:6443",
            "sc://host:65535",
            "yarn",
        )
    ),
    *(
        address(text, right=False)
        for text in (
            "",
            "local[]",
            "local[0]",
            "spark://host",
            "http://host",
            "yarn ",
            "sc://a b",
            "sc://a:65536",
        )
    ),
    Scenario(
        "a replica's name is taken once in its cluster",
        setup=[PLAIN, REPLICA],
        run=CreateClusterReplica(cluster="p", name="One", size="small", address="yarn"),
        expect=Refused(AlreadyExists, "replica p.one already exists"),
    ),
    Scenario(
        "a replica of an unknown size is refused",
        setup=[PLAIN],
        run=CreateClusterReplica(cluster="p", name="r", size="huge", address="yarn"),
        expect=Refused(InvalidInput, "'huge' is not configured"),
    ),
    Scenario(
        "a managed cluster gets no replica by hand",
        setup=[MANAGED],
        run=CreateClusterReplica(cluster="c", name="r9", size="small", address="yarn"),
        expect=Refused(IllegalChange, "cluster c is managed"),
    ),
    Scenario(
        "a managed cluster loses no replica by hand",
        setup=[MANAGED],
        run=DropClusterReplica(cluster="c", replica="r1"),
        expect=Refused(IllegalChange, "cluster c is managed"),
    ),
    Scenario(
        "a managed cluster's replica is told where one can look into it",
        setup=[MANAGED],
        run=AlterClusterReplica(cluster="c", replica="r1", spark_ui="http://host:4040"),
        expect=Made(["alter_cluster_replica"]),
        checks=[(introspection, ["r1 spark_ui http://host:4040"])],
    ),
    Scenario(
        "another introspection address replaces the first and keeps its id",
        setup=[MANAGED, AlterClusterReplica(cluster="c", replica="r1", spark_ui="http://h:1")],
        run=AlterClusterReplica(cluster="c", replica="r1", spark_ui="http://h:2"),
        expect=Made(["alter_cluster_replica"]),
        checks=[
            (introspection, ["r1 spark_ui http://h:2"]),
            (
                lambda r: [
                    s.id in {t.id for t in r.before.contents.objects("introspection_index")}
                    for s in r.after.contents.objects("introspection_index")
                ],
                [True],
            ),
        ],
    ),
    Scenario(
        "an introspection address that is no URI is refused",
        setup=[PLAIN],
        run=CreateClusterReplica(
            cluster="p", name="r", size="small", address="yarn", spark_ui="host"
        ),
        expect=Refused(InvalidInput, "spark_ui of a replica cannot be 'host'"),
    ),
    Scenario(
        "a replica is altered and renamed",
        setup=[PLAIN, REPLICA],
        run=[
            AlterClusterReplica(
                cluster="p", replica="one", size="large", address="yarn", event_log=""
            ),
            RenameClusterReplica(cluster="p", replica="one", new_name="two"),
        ],
        expect=Made(["alter_cluster_replica", "rename_cluster_replica"]),
        checks=[
            (replicas, ["p.two large yarn"]),
            (introspection, ["two spark_ui http://host:4040"]),
        ],
    ),
    Scenario(
        "a dropped replica takes its introspection indexes with it",
        setup=[PLAIN, REPLICA],
        run=DropClusterReplica(cluster="p", replica="one"),
        expect=Made(["drop_cluster_replica"]),
        checks=[(lambda r: r.after.contents.count("introspection_index"), 0)],
    ),
    Scenario(
        "a missing replica is not dropped",
        setup=[PLAIN],
        run=DropClusterReplica(cluster="p", replica="r"),
        expect=Refused(ObjectNotFound, "p.r"),
    ),
    Scenario(
        "a managed cluster's replicas have its owner",
        setup=[MANAGED, AlterClusterReplica(cluster="c", replica="r1", spark_ui="http://h:1")],
        run=AlterCluster(name="c", owner="cleo"),
        expect=Made(["alter_cluster", "alter_cluster_replica", "alter_cluster_replica"]),
        checks=[(owners, ["c cleo", "r1 cleo", "spark_ui cleo", "r2 cleo"])],
    ),
    Scenario(
        "ALTER CLUSTER OWNER TO reaches its managed replicas",
        setup=[MANAGED],
        run=SetOwner(kind=ObjectKind.CLUSTER, name="c", owner="cleo"),
        expect=Made(["alter_cluster", "alter_cluster_replica", "alter_cluster_replica"]),
        checks=[(owners, ["c cleo", "r1 cleo", "r2 cleo"])],
    ),
    Scenario(
        "the replicas of an unmanaged cluster have owners of their own",
        setup=[PLAIN, REPLICA],
        run=SetOwner(kind=ObjectKind.CLUSTER, name="p", owner="cleo"),
        expect=Made(["alter_cluster"]),
        checks=[(owners, ["p cleo", "one ann", "event_log ann", "spark_ui ann"])],
    ),
]
