"""``python -m prm`` is the command ``prm``."""

import sys

from prm.cli import main

sys.exit(main())
