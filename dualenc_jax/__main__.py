"""`python -m dualenc_jax` is `dualenc`."""

import sys

from dualenc_jax.cli import main as cli

sys.exit(cli.main())
