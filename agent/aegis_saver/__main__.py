import sys

from aegis_saver.watch import main

if __name__ == "__main__":
    sys.exit(main())
