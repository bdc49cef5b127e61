"""The control socket's own folder, where the name of the state directory is too long for a socket."""

from __future__ import annotations

from pathlib import Path

from aegis_agent.control import ControlSocket, Request, socket_path


def answer(request: Request) -> dict[str, object]:
    return {}


async def test_a_folder_of_its_own_goes_with_the_socket(tmp_path: Path) -> None:
    path = socket_path(tmp_path / ("long" * 40))
    assert path.parent.stat().st_mode & 0o777 == 0o700
    opened = ControlSocket(path, answer)
    await opened.open()
    await opened.close()
    assert not path.parent.exists()


async def test_a_folder_that_was_cleaned_away_meanwhile_ends_nobody(tmp_path: Path) -> None:
    """Cleaners of /tmp remove what is days old; a training lasts longer."""
    path = socket_path(tmp_path / ("long" * 40))
    opened = ControlSocket(path, answer)
    await opened.open()
    path.unlink()
    path.parent.rmdir()
    await opened.close()


async def test_the_state_directory_stays(tmp_path: Path) -> None:
    path = socket_path(tmp_path / "s")
    path.parent.mkdir()
    opened = ControlSocket(path, answer)
    await opened.open()
    await opened.close()
    assert path.parent.exists() and not path.exists()
