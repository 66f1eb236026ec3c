"""`python -m batchjob_exporter`."""

import sys

from batchjob_exporter.main import main

sys.exit(main())
