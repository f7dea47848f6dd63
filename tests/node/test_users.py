"""The users file, and the tokens that authenticate callers."""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline.cli.main import IO_ERROR
from strandline.errors import InvalidInput
from strandline.node.users import MAX_FILE_BYTES, Users, new_token
from tests.log_lines import log_lines
from tests.schedules import explore
from tests.strandline_command import strandline


def test_a_token_authenticates_only_its_user(tmp_path: Path) -> None:
    path = tmp_path / "users"
    token, other = new_token(path, "ann"), new_token(path, "bob@example.org")
    users = Users(path)
    assert users.accepts("ann", token)
    assert users.accepts("bob@example.org", other)
    for user, secret in (
        ("ann", other), ("bob@example.org", token), ("eve", token), ("ann", ""), ("", token),
        ("ann", "\ud800"), ("ann", f"{token} "),
    ):  # fmt: skip
        assert not users.accepts(user, secret)


def test_the_file_contains_only_hashes_and_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "users"
    token = new_token(path, "ann")
    assert token not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_user_can_use_the_old_and_the_new_token_until_the_old_one_is_deleted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "users"
    old = new_token(path, "ann")
    users = Users(path)
    new = new_token(path, "ann")
    assert users.accepts("ann", old)
    assert users.accepts("ann", new)
    path.write_text("# people\n\n" + path.read_text().splitlines()[1] + "\n")
    assert not users.accepts("ann", old)
    assert users.accepts("ann", new)


def test_a_request_that_comes_while_another_one_reads_the_file_again_uses_the_new_file(
    tmp_path: Path,
) -> None:
    path, later = tmp_path / "users", tmp_path / "later"
    revoked, new = new_token(path, "ann"), new_token(later, "ann")
    before, after = path.read_text(), later.read_text()

    def scenario(race: Callable[..., list[Any]]) -> None:
        path.write_text(before)
        users = Users(path)
        path.write_text(after + "\n")  # of another size: the clock of files is coarse
        accepted = race(lambda: users.accepts("ann", new), lambda: users.accepts("ann", revoked))
        assert accepted == [True, False]

    assert explore(scenario, steps_in=[Users]) > 10


def test_a_token_is_revoked_also_by_a_file_of_the_same_size_and_time(tmp_path: Path) -> None:
    """As a tool writes it that keeps the times of files."""
    path = tmp_path / "users"
    token = new_token(path, "ann")
    users = Users(path)
    before, (line,) = path.stat(), path.read_text().splitlines()
    with log_lines() as lines:
        while path.stat().st_ctime_ns == before.st_ctime_ns:
            path.write_text(line[:-64] + "0" * 64 + "\n")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert not users.accepts("ann", token)
    assert [entry["message"] for entry in lines.of("node.users")] == [
        "read the users file again: 1 users have tokens"
    ]


def test_users_of_the_environment_take_the_place_of_a_file_or_add_to_it(tmp_path: Path) -> None:
    path = tmp_path / "users"
    old, new = new_token(path, "ann"), new_token(path, "eve")
    lines = path.read_text()
    users = Users(None, lines)
    assert users.accepts("ann", old)
    assert not users.accepts("ann", new)
    path.unlink()
    in_file = new_token(path, "ann")
    users = Users(path, lines)
    assert users.accepts("ann", old)
    assert users.accepts("ann", in_file)
    path.write_text("")  # the change of the file leaves the others
    assert users.accepts("eve", new)
    assert not users.accepts("ann", in_file)
    with pytest.raises(InvalidInput, match="line 2 of the setting users cannot be read"):
        Users(None, lines.replace("eve:sha256", "eve:plain"))


def test_an_invalid_or_missing_file_leaves_the_loaded_users_in_place(tmp_path: Path) -> None:
    path = tmp_path / "users"
    token = new_token(path, "ann")
    users = Users(path)
    with log_lines() as lines:
        path.write_text("ann:plain:secret\n")
        assert users.accepts("ann", token)
        assert users.accepts("ann", token)
        path.unlink()
        assert users.accepts("ann", token)
    messages = [line["message"] for line in lines.of("node.users")]
    assert len(messages) == 2
    assert f"line 1 of the users file {path} cannot be read" in messages[0]
    assert "No such file" in messages[1]
    assert "secret" not in messages[0]


def test_a_file_that_its_node_may_not_read_is_not_to_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_token(tmp_path / "users", "ann")

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("strandline.node.users.os.open", refuse)
    with pytest.raises(InvalidInput, match="Permission denied; let the user of the node read it"):
        Users(tmp_path / "users")


@pytest.mark.parametrize("line", ["ann", "ann:md5:0", ":sha256:" + "0" * 64, "a:sha256:0", "\xff"])
def test_a_malformed_file_is_refused_and_not_changed(tmp_path: Path, line: str) -> None:
    path = tmp_path / "users"
    path.write_bytes(line.encode("latin-1"))
    for attempt in (lambda: Users(path), lambda: new_token(path, "ann")):
        with pytest.raises(InvalidInput, match="cannot be read"):
            attempt()
    assert path.read_bytes() == line.encode("latin-1")


def test_a_token_is_added_on_a_new_line_after_an_unterminated_one(tmp_path: Path) -> None:
    path = tmp_path / "users"
    first = new_token(path, "ann")
    path.write_text(path.read_text().rstrip("\n"))
    second = new_token(path, "bob")
    users = Users(path)
    assert users.accepts("ann", first)
    assert users.accepts("bob", second)


def test_a_token_whose_line_does_not_fit_on_the_disk_leaves_the_file_as_it_was(
    tmp_path: Path,
) -> None:
    path = tmp_path / "users"
    token = new_token(path, "ann")
    text = path.read_text()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(text) + 30, before[1]))
    try:
        refused = strandline("token", path, "bob")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refused.exit_code == IO_ERROR
    assert re.search("no token was added to .*users: No space left", refused.stderr)
    assert path.read_text() == text
    assert Users(path).accepts("ann", token)


def test_a_token_is_on_disk_when_it_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync
    synced: dict[str, str] = {}

    def recording(descriptor: int) -> None:
        synced[os.readlink(f"/proc/self/fd/{descriptor}")] = path.read_text()
        fsync(descriptor)

    path = tmp_path / "users"
    monkeypatch.setattr(os, "fsync", recording)
    new_token(path, "ann")
    assert synced == dict.fromkeys((str(path), str(tmp_path)), path.read_text())
    assert path.read_text()


def test_a_large_file_is_read_and_a_huge_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "users"
    token = new_token(path, "ann")
    users = Users(path)
    with path.open("ab") as file:
        file.write(f"ann:sha256:{'0' * 64}\n".encode() * 100_000)
    assert users.accepts("ann", token)
    with path.open("ab") as file:
        file.truncate(1 << 40)  # a sparse file: it takes no space
    with log_lines() as lines:
        assert users.accepts("ann", token)
    assert f"it has more than {MAX_FILE_BYTES} bytes" in lines.of("node.users")[0]["message"]
    with pytest.raises(InvalidInput, match="it has more than"):
        Users(path)


def test_a_pipe_or_a_folder_instead_of_a_users_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):  # reading the pipe would block
        for attempt in (lambda path=path: Users(path), lambda path=path: new_token(path, "ann")):
            with pytest.raises(InvalidInput, match="it is not a file"):
                attempt()


@pytest.mark.parametrize("user", ["", "a:b", "a\nb", "x" * 256, "#ann", " ann", "ann "])
def test_a_name_that_http_cannot_carry_gets_no_token(tmp_path: Path, user: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be the name of a user"):
        new_token(tmp_path / "users", user)
    assert os.listdir(tmp_path) == []


def test_the_token_command_prints_only_the_token(tmp_path: Path) -> None:
    path = tmp_path / "users"
    result = strandline("token", path, "ann")
    assert (result.exit_code, Users(path).accepts("ann", result.stdout.strip())) == (0, True)
    refused = strandline("token", tmp_path / "none" / "users", "ann")
    assert refused.exit_code == 64
    assert "no token was added" in refused.stderr
