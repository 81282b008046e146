"""`python -m node` is `outpost`."""

import sys

from node.cli import main

sys.exit(main(sys.argv[1:]))
