"""The native twin of cleaning_pure: same names, same results.                             [P]"""

from kafkalite.compaction.cleaning_pure import Output as Output
