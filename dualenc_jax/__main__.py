"""`python -m dualenc_jax` is `dualenc`."""

import sys

from dualenc_jax import cli

sys.exit(cli.main())
