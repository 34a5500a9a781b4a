"""`python -m gemel` is the command `gemel`."""

import sys

from gemel.cli.main import main

sys.exit(main())
