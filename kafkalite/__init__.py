"""kafkalite: stream processing in Python on top of its own log.                            [P]"""
