"""Log compaction: of every key the latest record stays.                                   [P]"""
