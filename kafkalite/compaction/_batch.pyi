"""The native twin of cleaning_pure: same names, same results.                             [P]"""

from kafkalite.compaction.cleaning_pure import copy_records as copy_records
