"""`python -m dualenc_jax` is `dualenc`."""

import sys

from dualenc_jax.commands import cli

sys.exit(cli.main())
