"""python stalledmount.py FOLDER CMD ...: mounts a file system over FOLDER that never answers (FUSE, with nobody reading), runs CMD, takes it away.

To be run in a mount namespace of its own, as root. Exits as CMD did.
"""

import ctypes
import os
import subprocess
import sys

folder, *command = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
if libc.mount(b"none", folder.encode(), b"fuse", 0, options) != 0:
    raise OSError(ctypes.get_errno(), f"mount {folder}")
code = subprocess.run(command, check=False).returncode
libc.umount2(folder.encode(), 2)  # MNT_DETACH; closing /dev/fuse ends whoever still waits
sys.exit(code)
