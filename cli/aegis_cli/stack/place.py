"""Where the stack of this user lies, and whether that folder can be trusted (keys lie in it). Owns the layout; makes the folder.

<base>/gate            lock around joining, starting and ending
<base>/keeper.lock     held as long as anything of the stack lives
<base>/keeper.json     what the keeper says about itself and its parts
<base>/control.sock    the keeper listens here
<base>/users/          one locked file per user process
<base>/pinned          exists: the stack stays when the last user goes
<base>/creds/          credentials of the parts and of the operator (0600)
<base>/store/          site (operator, keys) and the state of nats-server, unless --state names another folder
<base>/nodes/<node>/   state of the node daemons, output of the workers
<base>/logs/           one file per part
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from aegis_bus.errors import SharedStateDir
from aegis_bus.natsserver import check_state_dir

from aegis_cli.errors import CliError, from_text


def base_dir(environ: dict[str, str] | None = None, uid: int | None = None) -> Path:
    """`$AEGIS_STACK_DIR`, else `$XDG_RUNTIME_DIR/aegis`, else `/tmp/aegis-<uid>`."""
    env = dict(os.environ) if environ is None else environ
    if env.get("AEGIS_STACK_DIR"):
        return Path(env["AEGIS_STACK_DIR"]).absolute()
    runtime = env.get("XDG_RUNTIME_DIR", "")
    if runtime and os.path.isdir(runtime) and os.access(runtime, os.W_OK):
        return Path(runtime) / "aegis"
    return Path(f"/tmp/aegis-{os.getuid() if uid is None else uid}")


def check_local(path: Path, mounts: str | None = None) -> None:
    """E121 when `path` lies on a file system of several machines."""
    try:
        check_state_dir(path, mounts)
    except SharedStateDir as error:
        raise from_text(str(error), "E121") from None


def trusted(path: Path) -> Path:
    """Make `path` (0700), or check that it is a real folder of ours that nobody else may enter. E122 says what is wrong with it."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise CliError("E122", f"cannot make {path}: {error.strerror}") from None
    info = os.lstat(path)
    if stat.S_ISLNK(info.st_mode):
        raise CliError(
            "E122", f"{path} is a symbolic link: the keys of the stack would lie where somebody else chose. Remove it, or set XDG_RUNTIME_DIR"
        )
    if not stat.S_ISDIR(info.st_mode):
        raise CliError("E122", f"{path} is not a folder. Remove it, or set XDG_RUNTIME_DIR")
    if info.st_uid != os.getuid():
        raise CliError("E122", f"{path} belongs to uid {info.st_uid}, not to you (uid {os.getuid()}): another user made it. Set XDG_RUNTIME_DIR")
    if info.st_mode & 0o077:
        raise CliError("E122", f"{path} has mode {info.st_mode & 0o777:o}: others may enter. Do: chmod 700 {path}")
    check_local(path)
    return path
