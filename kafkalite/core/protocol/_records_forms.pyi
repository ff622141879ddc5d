"""The native twin that reads records as forms: same results, same errors.                    [P]"""

from kafkalite.core.protocol.spans_pure import decode_forms as decode_forms
