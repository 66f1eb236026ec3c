"""python -m batchjob_cli."""

import sys

from batchjob_cli.main import main

sys.exit(main())
