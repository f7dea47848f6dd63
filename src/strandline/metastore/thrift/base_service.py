"""The methods that every metastore answers alike: the base service fb303, and ``set_ugi``.

Hive's client sends the oneway ``shutdown`` whenever it closes or reopens a connection. It means
"this client goes", and the server stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from strandline.errors import InvalidInput
from strandline.metastore.thrift.dispatch import ConnectionInfo
from strandline.model.identifiers import MAX_USER_LENGTH

ALIVE = 2
"""The status of fb303 that says that the service answers."""


class BaseService:
    """Answers the methods that need no metastore.

    ``started`` is in seconds since the epoch; ``counters`` gives what ``getCounters`` shows.
    """

    def __init__(self, *, started: int, counters: Callable[[], Mapping[str, int]]) -> None:
        # The arguments and answers of methods are of as many types as the protocol: hence Any.
        self._answers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "aliveSince": lambda args: started,
            "getCounter": lambda args: counters().get(args.get("key", ""), 0),
            "getCounters": lambda args: dict(counters()),
            "getCpuProfile": lambda args: "",
            "getName": lambda args: "new db based metaserver",
            "getOption": lambda args: "",
            "getOptions": lambda args: {},
            "getStatus": lambda args: ALIVE,
            "getStatusDetails": lambda args: "",
            "getVersion": lambda args: "3.0",
            "reinitialize": lambda args: None,
            "setOption": lambda args: None,
            "shutdown": lambda args: None,
        }

    def answers(self, method: str) -> bool:
        return method == "set_ugi" or method in self._answers

    def answer(self, connection: ConnectionInfo, method: str, args: dict[str, Any]) -> Any:
        if method == "set_ugi":
            return _set_ugi(connection, args)
        return self._answers[method](args)


def _set_ugi(connection: ConnectionInfo, args: dict[str, Any]) -> list[str]:
    """Remembers who the client says it is, and gives its groups back, as Hive does."""
    user: str = args.get("user_name", "")
    if len(user) > MAX_USER_LENGTH:
        raise InvalidInput(  # the name would stay in memory as long as its connection
            f"the user's name has {len(user)} characters; give at most {MAX_USER_LENGTH}"
        )
    connection.user = user
    groups: list[str] = args.get("group_names", [])
    return groups
