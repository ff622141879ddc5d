"""The native twins of records_pure that partition: same names, same results, same errors.   [P]"""

from kafkalite.core.protocol.records_pure import murmur2 as murmur2
from kafkalite.core.protocol.records_pure import partition_column as partition_column
from kafkalite.core.protocol.records_pure import split as split
