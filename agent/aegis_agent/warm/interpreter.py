# The program of a standby, given to the user's python on its standard input. Python 3.8 or newer, standard library only, nothing of Aegis.
#
# It imports packages, with one thread and no accelerator opened, and for each order to run forks a process in which the user's script becomes
# __main__ as if it had been executed: session, files, directory, environment, arguments, import path, tracebacks and exit codes are those of
# `python script.py`. What cannot be so is said ("refused", "tainted"), and the agent starts the command cold.
def _aegis_standby():
    import sys

    # Where a script has its own folder, `-` has the present one: nothing of the user's is imported here.
    own_path = not (sys.flags.isolated or getattr(sys.flags, "safe_path", False))
    if own_path:
        del sys.path[0]
    import ctypes
    import gc
    import importlib
    import importlib.machinery
    import json
    import os
    import select
    import signal
    import site
    import socket
    import struct
    import sysconfig
    import time

    main = sys.modules["__main__"].__dict__
    FIRST = {name: main[name] for name in main if name.startswith("__") and name not in ("__file__", "__cached__")}
    link = socket.socket(fileno=int(os.environ.pop("AEGIS_WARM_FD")))
    link.set_inheritable(False)
    volatile = frozenset(os.environ.pop("AEGIS_WARM_VOLATILE", "").split(","))
    with open("/proc/self/environ", "rb") as f:  # what was given, without what the interpreter set itself
        BASE = dict(os.fsdecode(entry).split("=", 1) for entry in f.read().split(b"\0") if b"=" in entry)
    real = os.path.realpath
    places = {real(sysconfig.get_paths()[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    places |= {real(path) for path in [*getattr(site, "getsitepackages", list)(), site.getusersitepackages()] if path}
    places |= {os.path.join(path, "lib-dynload") for path in list(places)}
    SITE = tuple(path.rstrip("/") + "/" for path in places)
    libc = ctypes.CDLL(None, use_errno=True)
    NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
    files = {}  # origin -> (mtime, size) of what is preloaded
    touched = []  # names of variables of a rank that a package has read
    allowed = set()

    stop = SystemExit

    def is_site(origin):
        return isinstance(origin, str) and (origin.startswith(SITE) or real(origin).startswith(SITE))

    def tell(**message):
        data = json.dumps(message).encode()
        link.sendall(struct.pack("!I", len(data)) + data)

    def receive(size):
        data, fds = b"", []
        while len(data) < size:
            # At most four descriptors come, with the first bytes of a message.
            more, ancillary, _, _ = link.recvmsg(size - len(data), socket.CMSG_SPACE(16))
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds += struct.unpack(f"{len(content) // 4}i", content[: len(content) // 4 * 4])
            if not more:
                os._exit(0)  # the agent is gone, or does not want us
            data += more
        return data, fds

    # --- packages -------------------------------------------------------------------------------------------------------------

    class Watched(dict):
        # The environment while packages are imported. One that reads a variable of a rank may keep it, and it is not the same in the next run.
        def __missing__(self, key):
            if os.fsdecode(key) in volatile:
                touched.append(os.fsdecode(key))
            raise KeyError(key)

    def from_file(module):
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None)
        return origin if getattr(spec, "has_location", False) and isinstance(origin, str) else None

    def threads():
        return len(os.listdir("/proc/self/task"))

    def survives_a_fork():
        # Threads that their library ends before a fork (OpenBLAS) are gone after one; any other would be missing in the child.
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return threads() == 1

    def device():
        for fd in os.listdir("/proc/self/fd"):
            try:
                path = os.readlink("/proc/self/fd/" + fd)
            except OSError:
                continue
            if path.startswith(("/dev/nvidia-uvm", "/dev/kfd", "/dev/davinci", "/dev/mxcd", "/dev/cambricon")):
                return path
        return ""

    def load(names, seen):
        began = time.monotonic()
        allowed.update(seen)
        known = set(sys.modules)
        os.environ[NVML] = "1"  # asking for GPUs must not open one
        try:
            for name in names:
                if name in sys.modules:
                    continue
                at = time.monotonic()
                try:
                    importlib.import_module(name)
                except Exception:
                    pass  # optional for others, as it was in the run
                new, known = set(sys.modules) - known, set(sys.modules)
                strange = [m for m in new if m not in allowed and from_file(sys.modules[m]) is not None]
                why = ""
                if strange:
                    why = f"imports {strange[0]}, which the run did not"
                elif touched:
                    why = f"reads {touched[0]} while it is imported"
                elif threads() > 1 and not survives_a_fork():
                    why = "starts threads while it is imported"
                elif device():
                    why = f"opens {device()} while it is imported"
                if why:
                    return tell(**{"is": "tainted", "name": name, "why": why})
                time.sleep(min(1.0, time.monotonic() - at))  # the training has the machine first
        finally:
            del os.environ[NVML]
            if NVML in BASE:
                os.environ[NVML] = BASE[NVML]
        for module in list(sys.modules.values()):
            origin = from_file(module)
            if origin and origin not in files:
                try:
                    state = os.stat(origin)
                except OSError:
                    continue  # inside an archive
                files[origin] = (state.st_mtime_ns, state.st_size)
        gc.collect()
        gc.freeze()
        with open("/proc/self/statm") as f:
            resident = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        tell(**{"is": "loaded", "modules": len(files), "seconds": time.monotonic() - began, "bytes": resident})

    def changed():
        for path, (mtime, size) in files.items():
            try:
                state = os.stat(path)
            except OSError:
                return path
            if (state.st_mtime_ns, state.st_size) != (mtime, size):
                return path
        return ""

    # --- one process --------------------------------------------------------------------------------------------------------------

    def write_area(first, last, data, fill):
        # The memory from which /proc/PID/cmdline and environ are read.
        room = last - first
        ctypes.memmove(first, (data + fill * room)[: room - 1] + b"\0", room)

    def show(words, env):
        # What the process is looked for by others: its command line, and the variables that differ from ours, AEGIS_SCOPE among them.
        with open("/proc/self/stat", "rb") as f:
            fields = f.read().rpartition(b")")[2].split()
        arg_start, arg_end, env_start, env_end = (int(field) for field in fields[45:49])
        if not 0 < arg_start < arg_end <= env_start < env_end:
            raise OSError("the kernel does not say where the arguments lie")
        write_area(arg_start, arg_end, b"".join(os.fsencode(word) + b"\0" for word in words), b"\0")
        area = ctypes.string_at(env_start, env_end - env_start)
        mark = b"AEGIS_SCOPE="
        at = 0 if area.startswith(mark) else area.find(b"\0" + mark) + 1
        end = area.find(b"\0", at) + 1
        differ = [mark + os.fsencode(env.get("AEGIS_SCOPE", ""))]
        differ += [os.fsencode(k + "=" + v) for k, v in env.items() if k != "AEGIS_SCOPE" and BASE.get(k) != v]
        data = b""
        for entry in differ:
            if len(data) + len(entry) + 32 < end - at:
                data += entry + b"\0"
        if not area.startswith(mark, at) or not data:
            raise OSError("no room for the scope")
        write_area(env_start + at, env_start + end, data + b"AEGIS_PAD=", b".")

    class Recorder:
        # Stands right before the path finder and answers as it does; notes for the standby of the next run what was found ("name") and, at the
        # next question, what of it was imported ("+name"): some are only asked for.
        def __init__(self, fd):
            self.fd = fd
            self.found = []

        def find_spec(self, name, path=None, target=None):
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            lines = ["+" + other for other in self.found if other in sys.modules]
            if lines:
                self.found = [other for other in self.found if other not in sys.modules]
            if spec is not None and spec.has_location and is_site(spec.origin):
                lines.append(name)
                self.found.append(name)
            if lines:
                try:
                    os.write(self.fd, ("\n".join(lines) + "\n").encode())
                except OSError:
                    pass
            return spec

    def script_path(script):
        if os.path.isabs(script) or sys.version_info < (3, 9):
            return script
        return os.path.join(os.getcwd(), script)

    def become(order, fds):
        # In the forked process. Returns the path of the script; the caller's caller runs it as __main__.
        stdin, stdout, stderr, go = fds
        agent, words, at, env = order["agent"], order["words"], order["script"], order["env"]
        os.setsid()
        while os.getppid() != agent:  # the process between us and the agent is ending
            time.sleep(0.0001)
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if order["cgroup"]:
            try:
                fd = os.open(order["cgroup"], os.O_WRONLY)
                os.write(fd, b"0")
                os.close(fd)
            except OSError:
                pass
        os.chdir(order["cwd"])
        for fd, number in ((stdin, 0), (stdout, 1), (stderr, 2)):
            os.dup2(fd, number)
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        show(words, env)
        set_here = {name: value for name, value in os.environ.items() if BASE.get(name) != value}  # by packages
        gone = [name for name in BASE if name not in os.environ and not name.startswith("AEGIS_WARM_")]
        os.environ.clear()
        os.environ._data = {}
        os.environ.update(env)
        os.environ.update(set_here)
        for name in gone:
            os.environ.pop(name, None)
        sys.argv[:] = words[at:]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = words
        if own_path:
            sys.path.insert(0, os.path.dirname(real(words[at])))
        if order["record"]:
            fd = os.open(order["record"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                where = sys.meta_path.index(importlib.machinery.PathFinder)
            except ValueError:
                where = len(sys.meta_path)
            sys.meta_path.insert(where, Recorder(fd))
        random = sys.modules.get("numpy.random")
        if random is not None:
            random.seed()  # as every process of its own has it
        tell(**{"is": "forked", "pid": os.getpid()})
        link.close()
        if os.read(go, 1) != b"g" or os.getppid() != agent:
            os._exit(97)
        os.close(go)
        return script_path(words[at])

    def fork(order, fds):
        # True in the new process. Between it and the agent stands one that ends at once, so that it becomes the agent's own child.
        sys.stdout.flush()
        sys.stderr.flush()
        middle = os.fork()
        if middle == 0:
            try:
                if os.fork() != 0:
                    os._exit(0)
            except BaseException:
                os._exit(97)
            return True
        os.waitpid(middle, 0)
        for fd in fds:
            os.close(fd)
        return False

    def can_run(order):
        words, at = order["words"], order["script"]
        path = os.path.join(order["cwd"], words[at])
        try:
            with open(path, "rb") as f:
                if f.read(2) == b"PK" or path.endswith(".pyc"):
                    return f"{path} is an archive"
        except OSError as error:
            return str(error)
        new = changed()
        return f"{new} has changed" if new else ""

    os.environ._data = Watched(os.environ._data)
    tell(**{"is": "up", "pid": os.getpid(), "version": sys.version.split()[0]})
    while True:
        select.select([link], [], [])
        head, fds = receive(4)
        body, more = receive(struct.unpack("!I", head)[0])
        fds += more
        order = json.loads(body)
        if order["do"] == "load":
            load(order["names"], order["seen"])
            continue
        why = can_run(order)
        if why:
            for fd in fds:
                os.close(fd)
            tell(**{"is": "refused", "why": why})
            continue
        if fork(order, fds):
            try:
                try:
                    script = become(order, fds)
                except Exception as error:
                    tell(**{"is": "failed", "why": f"{type(error).__name__}: {error}"})
                    raise
                main.clear()
                main.update(FIRST)
                libc.fopen.restype = ctypes.c_void_p
                file = libc.fopen(os.fsencode(script), b"rb")
                if not file:
                    os._exit(97)
                start = ctypes.pythonapi.PyRun_AnyFileExFlags
                start.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
            except BaseException:
                os._exit(97)
            if start(file, os.fsencode(script), 1, None) != 0 and getattr(sys, "last_type", None) is not KeyboardInterrupt:
                raise stop(1)
            return  # an unhandled KeyboardInterrupt makes python end itself by that signal


_aegis_standby()
