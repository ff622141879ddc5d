"""`df.write.format("kafkalite")`: records, staged files, one transaction an epoch.          [IO]"""
