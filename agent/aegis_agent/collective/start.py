"""Started by the user's interpreter: `start.py FOLDER NAME` loads a folder of ours as package NAME and runs its program.

Nothing of ours is left on that interpreter's path.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [p for p in sys.path if p and os.path.abspath(p) != HERE]


def main() -> None:
    import importlib.util

    folder, name = sys.argv[1:3]
    spec = importlib.util.spec_from_file_location(name, folder + "/__init__.py", submodule_search_locations=[folder])
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    __import__(name + ".program", fromlist=["main"]).main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # taking torch's modules apart takes longer than some of the checks


if __name__ == "__main__":
    main()
