"""Log compaction keeps the latest record of each key.                                       [P]"""
