"""The native twin of cleaning_pure: same names, same results.                             [P]"""

from kafkalite.compaction.cleaning_pure import filter_batches as filter_batches
from kafkalite.compaction.cleaning_pure import judge_records as judge_records
from kafkalite.compaction.cleaning_pure import put_batches as put_batches
from kafkalite.compaction.cleaning_pure import put_records as put_records
