"""The native twin of records_pure that writes: same name, same results, same errors.        [P]"""

from kafkalite.core.protocol.records_pure import encode_batch as encode_batch
