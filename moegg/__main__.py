"""python -m moegg: the same as the console script."""
import sys

from moegg.cli import main

sys.exit(main())
