import sys

from aegis_cli.slurm.main import main

sys.exit(main(sys.argv[1:]))
