"""`python -m gemel` is the command `gemel`."""

import sys

# `python -m` puts the working folder first, where a file with the name of a module would be executed instead of it.
if not sys.flags.safe_path:
    del sys.path[0]

from gemel.cli.main import main

sys.exit(main())
