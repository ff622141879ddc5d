"""Values to files and back: one partition is one log.                                    [D]"""
