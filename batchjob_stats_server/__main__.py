"""`python -m batchjob_stats_server` is the command."""

import sys

from batchjob_stats_server.main import main

sys.exit(main())
