"""``strandline repair-clock``: let a store whose time is far ahead go on."""

from __future__ import annotations

import click

from strandline.cli.options import STORE, Store
from strandline.cli.settings import load
from strandline.cli.stores import database_of
from strandline.clock import HybridClock, Timestamp, format_timestamp, milliseconds
from strandline.sql import Database, accept_time, accepted_time, stored_time

_DAY_MS = 24 * 60 * 60 * 1000


@click.command()
@STORE
@click.option("--yes", is_flag=True, help="Do it. Without this, only say what would be done.")
def command(store: Store, *, yes: bool) -> None:
    """Let STORE go on whose time is far ahead of this machine's clock.

    A clock that stood years ahead for a moment leaves its time in the store. No time goes back, so
    writes are refused from then on. This accepts the store's time: what is written from now on gets
    times right behind it, until the machine's clock has caught up. Nothing that was written
    changes. A node may be running.
    """
    settings = load(store).settings
    with database_of(store, read_only=False) as database:
        clock = HybridClock(max_ahead_ms=settings.clock_ahead_limit_ms)
        last, accepted = _times(database)
        ahead = clock.ahead_of_wall(last)
        click.echo(f"the store's time     {format_timestamp(last)}")
        click.echo(f"this machine's clock {format_timestamp(clock.current())}")
        if not clock.is_too_far_ahead(last):
            click.echo("nothing to repair: the store's time is not too far ahead")
        elif milliseconds(last) <= milliseconds(accepted) + clock.max_ahead_ms:
            click.echo("nothing to repair: this time was accepted before")
        else:
            click.echo(_PLAN.format(days=f"{ahead / _DAY_MS:,.1f}"))
            if yes:
                with database.write() as connection:
                    accept_time(connection)
                click.echo("accepted: the store can be written again")
            else:
                click.echo("nothing was changed; if this machine's clock is right, add --yes")


_PLAN = """\
the store is {days} days ahead. If its time is accepted, until this machine's clock has caught up
  - every version and commit gets a time right behind the last one, in its order
  - transactions and holds do not time out by themselves
  - a time between now and then names the state before the clock jumped"""


def _times(database: Database) -> tuple[Timestamp, Timestamp]:
    with database.read() as connection:
        return stored_time(connection), accepted_time(connection)
