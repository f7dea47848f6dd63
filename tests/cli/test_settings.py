"""The registry of settings: every field of `Settings` as an option, a variable and in a file."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import click
import pytest

from strandline import logs
from strandline.cli.main import COMMANDS, IO_ERROR
from strandline.config import Settings
from strandline.errors import InvalidInput
from strandline.node import Node, server
from strandline.node.settings import FILE_NAME, REGISTRY, load, registry_of
from tests.strandline_command import strandline


def another_value(name: str) -> str:
    """A text for a value other than the default of that setting."""
    setting = REGISTRY[name]
    if setting.is_list:
        return "/data/a"
    if setting.kind is int:
        default = 0 if setting.default is None else setting.default
        assert isinstance(default, int)
        # Two more than the default, because the HTTP port is one more than the Thrift port.
        return str(default + 2)
    if setting.allowed.startswith("one of "):
        choices = setting.allowed.removeprefix("one of ").split(", ")
        return next(choice for choice in choices if choice != setting.default)
    return "127.0.0.2"


@pytest.mark.parametrize("name", REGISTRY)
def test_every_setting_is_documented_and_can_be_set_in_each_place(
    name: str, tmp_path: Path
) -> None:
    setting = REGISTRY[name]
    assert setting.meaning, f"the docstring of Settings has no paragraph ``{name}``: …"
    assert "``" not in setting.meaning  # `strandline config --output json` shows it
    text = another_value(name)
    value = setting.read(text)
    assert value != setting.default
    by_variable = load(tmp_path, environment={setting.variable: text})
    assert getattr(by_variable.settings, name) == value
    assert by_variable.origins[name] == f"environment variable {setting.variable}"
    empty = {} if name in ("users", "users_file") else {setting.variable: ""}
    by_option = load(tmp_path, options={name: text}, environment=empty)
    assert getattr(by_option.settings, name) == value
    (tmp_path / FILE_NAME).write_text(f"{name} = {json.dumps(text)}\n")
    by_file = load(tmp_path, environment={})
    assert getattr(by_file.settings, name) == value
    assert by_file.origins[name] == str(tmp_path / FILE_NAME)
    assert setting.option in strandline("serve", "--help").output


def test_the_help_names_other_settings_as_options_and_shows_every_default() -> None:
    shown = " ".join(strandline("serve", "--help").output.split())
    assert "Leave it at loopback unless there is a --users-file: without one" in shown
    assert 'leaves this to the command "strandline clean".' in shown
    assert "--catalog-log TEXT " in shown
    assert "--allowed-hosts TEXT,… " in shown
    assert not re.search(r"``|default: ?\]", shown)


def test_options_override_variables_which_override_files(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("cache_bytes = 1\nslow_call_ms = 1\nhttp_port = 1\n")
    other = tmp_path / "other.toml"
    other.write_text('cache_bytes = "2KiB"\nslow_call_ms = "2s"\n')
    loaded = load(
        tmp_path,
        config=other,
        options={"cache_bytes": "4", "host": None},
        environment={"STRANDLINE_CACHE_BYTES": "3"},
    )
    settings = loaded.settings
    assert (settings.cache_bytes, settings.slow_call_ms, settings.http_port) == (4, 2000, 1)
    assert loaded.origins["slow_call_ms"] == str(other)
    assert loaded.origins["host"] == "default"
    named = load(tmp_path, environment={"STRANDLINE_CONFIG": str(other)})
    assert named.settings.cache_bytes == 2048


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "thrift_prot = 1",
            "'thrift_prot' is not a setting of a node (did you mean thrift_port?); the",
        ),
        ("[node]\nhost = 'x'", "'node' is not a setting of a node"),
        ("thrift_port = 'x'", "thrift_port cannot be 'x': it is a whole number"),
        ("thrift_port = true", "thrift_port cannot be True: it is a whole number"),
        ("thrift_port = 1.5", "thrift_port cannot be 1.5: it is a whole number"),
        ("thrift_port = 70000", "thrift_port is 70000; a port is a number from 0 to 65535"),
        (
            "cache_bytes = '1 acre'",
            "a whole number of bytes, or a number with a unit (65536, 256MiB)",
        ),
        ("cache_bytes = -1", "it cannot be negative"),
        ("transaction_timeout_ms = '9999999d'", "it must be at most 3162240000000, which is 100"),
        ("snapshot_hold_ms = '9999999d'", "it must be at most 3162240000000, which is 100"),
        ("slow_call_ms = '1 year'", "of milliseconds, or a number with a unit (500, 30s, 7d)"),
        ("log_level = 'loud'", "it is one of debug, info, warning, error"),
        ("host = 7", "host cannot be 7: it is a string"),
        ("host = ' '", "host is empty"),
        ("thrift_port = 5\nhttp_port = 5", "thrift_port and http_port are both 5"),
        ("x = ", "are not TOML"),
        ("\udcff", "are not TOML"),
    ],
)
def test_a_wrong_value_in_a_file_is_refused_with_the_file_and_what_is_allowed(
    tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / FILE_NAME
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InvalidInput) as raised:
        load(tmp_path, environment={})
    assert says in raised.value.message
    assert str(file) in raised.value.message


@pytest.mark.parametrize("name", ["slow_call_ms", "call_threads", "deploy_generation"])
def test_a_program_that_gives_a_number_as_a_text_or_a_flag_is_told_so(name: str) -> None:
    for value in ("5s", True):
        given: Any = {name: value}
        with pytest.raises(InvalidInput, match=f"{name} must be a whole number, not {value!r}"):
            Settings(**given)


def test_a_missing_named_file_and_a_wrong_variable_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nowhere\.toml cannot be read: No such file"):
        load(tmp_path, config=tmp_path / "nowhere.toml", environment={})
    with pytest.raises(InvalidInput, match="environment variable STRANDLINE_HTTP_PORT: http_port"):
        load(tmp_path, environment={"STRANDLINE_HTTP_PORT": "many"})


def test_a_new_field_of_settings_is_a_setting() -> None:
    @dataclass(frozen=True)
    class More(Settings):
        """More settings.

        ``roots``: folders below which
        places may be named.
        ``owner``: whose.
        ``mode``: how.
        """

        roots: tuple[str, ...] = ()
        owner: str | None = None
        mode: Literal["a", "b"] = "a"

    registry = registry_of(More)
    assert list(registry)[-3:] == ["roots", "owner", "mode"]
    assert registry["roots"].meaning == "folders below which places may be named."
    read = {name: registry[name].read for name in registry}
    assert read["roots"]("/a, /b") == read["roots"](["/a", "/b"]) == ("/a", "/b")
    assert read["owner"]("ann") == "ann"
    for name, wrong in (("roots", [1]), ("owner", 1), ("mode", "c")):
        with pytest.raises(InvalidInput, match=f"{name} cannot be"):
            read[name](wrong)


def test_config_takes_the_address_of_a_store_on_servers() -> None:
    shown = strandline("config", "postgresql://h/d", "--warehouse", "/mnt/lake")
    assert shown.exit_code == 0, shown.output
    assert re.search(r"^warehouse +/mnt/lake +option --warehouse", shown.output, re.MULTILINE)
    assert "None" not in shown.output  # what is not set is shown as —


def test_two_options_are_checked_together(tmp_path: Path) -> None:
    ports = ("--thrift-port", Settings().http_port, "--http-port", Settings().thrift_port)
    assert strandline("config", *ports).exit_code == 0
    refused = strandline("config", *ports[:2])
    assert (refused.exit_code, "thrift_port and http_port are both" in refused.stderr) == (64, True)


def test_config_shows_each_value_and_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE_NAME).write_text('slow_call_ms = "5s"\n')
    monkeypatch.setenv("STRANDLINE_HTTP_PORT", "9999")
    monkeypatch.setenv("STRANDLINE_SERVICE_HOST", "10.0.0.1")
    shown = strandline("config", tmp_path, "--log-level", "debug")
    assert shown.exit_code == 0
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in shown.stdout.splitlines()}
    assert rows["slow_call_ms"] == ["5000", str(tmp_path / FILE_NAME)]
    assert " ".join(rows["http_port"]).split() == (
        ["9999", "environment", "variable", "STRANDLINE_HTTP_PORT"]
    )
    assert rows["log_level"][0] == "debug"
    assert rows["host"][0] == "127.0.0.1"
    assert "STRANDLINE_SERVICE_HOST is set, but it is not a setting" in shown.stderr
    lines = strandline("config", tmp_path, "--output", "json").stdout.splitlines()
    settings = {setting["setting"]: setting for setting in map(json.loads, lines)}
    assert list(settings) == [field.name for field in fields(Settings)]
    assert settings["slow_call_ms"]["value"] == 5000
    assert settings["slow_call_ms"]["from"] == str(tmp_path / FILE_NAME)
    assert settings["host"]["variable"] == "STRANDLINE_HOST"


def test_config_and_errors_show_no_password_and_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = "0123456789abcdef" * 4
    monkeypatch.setenv("STRANDLINE_USERS", f"# team\nann:sha256:{digest}\nbob:token\ntoken\n")
    monkeypatch.setenv("STRANDLINE_OBJECTS", "postgresql://u:pa55@host/lake?password=pa55")
    for output in ("text", "json"):
        shown = strandline("config", "--output", output).stdout
        assert all(name in shown for name in ("ann:…", "bob:…", "postgresql://host/lake"))
        assert not any(secret in shown for secret in (digest, "bob:token", "pa55"))
    monkeypatch.delenv("STRANDLINE_USERS")
    (tmp_path / FILE_NAME).write_text(f"users = ['ann:sha256:{digest}']\n")
    refused = strandline("config", tmp_path)
    assert "users cannot be this value: it is a string" in refused.stderr
    assert digest not in refused.stderr


def test_serve_says_why_it_stops_when_nobody_reads_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "ready thrift://127.0.0.1:1 http://127.0.0.1:2"
    shown = click.echo

    def refuse(message: object, **options: Any) -> None:
        if message == line:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        shown(message, **options)

    monkeypatch.setattr(click, "echo", refuse)
    monkeypatch.setattr(logs, "configure", lambda **_: None)
    monkeypatch.setattr(server, "serve", lambda *_, ready, **__: ready(line))
    result = strandline("serve", tmp_path)
    assert (result.exit_code, result.stderr) == (
        IO_ERROR,
        f"strandline: the node stopped, because its line {line!r} cannot be written to standard "
        "output: Broken pipe\n",
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_node_that_starts_also_as_the_first_process_of_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """There, a signal without a handler is ignored."""
    closed = []

    def start(*_: object, **__: object) -> None:
        handle = signal.getsignal(number)
        assert callable(handle)
        try:
            handle(number, None)
        finally:
            closed.append(number)

    monkeypatch.setattr(logs, "configure", lambda **_: None)
    monkeypatch.setattr(server, "serve", start)
    former = signal.signal(number, signal.SIG_DFL)  # as in a terminal, also under nohup
    try:
        assert strandline("serve", tmp_path).exit_code == 0
        assert closed == [number]
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, former)


def test_a_command_that_is_interrupted_ends_with_the_status_of_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt  # not the signal, which a run in the background ignores

    monkeypatch.setattr("strandline.cli.settings.load", interrupt)
    result = strandline("config", tmp_path)
    assert (result.exit_code, result.output) == (128 + signal.SIGINT, "")


@pytest.mark.parametrize("name", ["users", "users_file"])
@pytest.mark.parametrize("value", ["", " \n"])
def test_empty_users_do_not_open_the_http_port(tmp_path: Path, name: str, value: str) -> None:
    variable, option = f"STRANDLINE_{name.upper()}", f"--{name.replace('_', '-')}"
    with pytest.raises(InvalidInput, match=f"{variable}: {name} is empty, so a node would"):
        load(tmp_path, environment={variable: value})
    with pytest.raises(InvalidInput, match=f"option {option}: {name} is empty"):
        load(tmp_path, options={name: value}, environment={})
    (tmp_path / FILE_NAME).write_text(f"{name} = {json.dumps(value)}\n")
    with pytest.raises(InvalidInput, match=f"{FILE_NAME}: {name} is empty"):
        load(tmp_path, environment={})


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_and_is_listed_with_its_summary(name: str) -> None:
    shown = strandline(name, "--help")
    assert shown.exit_code == 0
    assert "Usage" in shown.output
    assert COMMANDS[name].summary in strandline("--help").output


def test_a_served_node_logs_variables_that_are_no_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_USER_FILE", "users")  # the setting is users_file
    monkeypatch.setattr(server, "serve", lambda *arguments, **settings: None)
    served = strandline("serve", tmp_path, "--log-format", "json")
    assert served.exit_code == 0
    (line,) = map(json.loads, served.stderr.splitlines())
    assert line["level"] == "warning"
    assert line["message"].startswith("STRANDLINE_USER_FILE is set, but it is not a setting")


def test_an_unknown_command_is_refused_with_the_closest_match() -> None:
    shown = strandline("undorp")
    assert shown.exit_code == 2
    assert "there is no command 'undorp'; did you mean undrop?" in shown.output


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.mkdir(), "Is a directory"),  # as a container's mount of a missing file
        (lambda path: path.symlink_to("missing"), "No such file or directory"),
    ],
)
def test_a_settings_file_that_is_none_is_refused(
    tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    make(tmp_path / FILE_NAME)
    result = strandline("config", tmp_path)
    assert (result.exit_code, result.stderr) == (
        64,
        f"strandline: the settings in {tmp_path / FILE_NAME} cannot be read: {reason}\n",
    )


def test_a_folder_that_the_user_may_not_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "lstat", refuse)
    result = strandline("config", tmp_path)
    assert result.exit_code == 64
    assert result.stderr == (
        f"strandline: this user may not read the folder {tmp_path}; run the command as the"
        " owner of the folder, or let the owner set file_access and the permissions of the folder\n"
    )


COMMAND = [sys.executable, "-m", "strandline"]


@pytest.fixture(params=["--help", "config", "debug dump"])
def command(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """A command; the last one leaves its output in the buffer until it ends."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    if request.param != "debug dump":
        return [*COMMAND, request.param]
    Node.open(tmp_path / "lake").close()
    return [*COMMAND, "debug", "dump", str(tmp_path / "lake"), "--stats-only"]


def test_unwritable_output_gives_one_line_and_a_failure(command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        completed = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (completed.returncode, completed.stderr) == (
        IO_ERROR,
        "strandline: standard output, or a file, cannot be written: No space left on device\n",
    )


def test_a_command_ends_without_a_message_if_the_reader_of_its_pipe_has_left(
    command: list[str],
) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write) as pipe:
        completed = subprocess.run(
            command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (completed.returncode, completed.stderr) == (1, "")


def test_a_command_succeeds_although_its_standard_output_is_closed() -> None:
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "config"]
    completed = subprocess.run(closed, capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stderr) == (0, "")
