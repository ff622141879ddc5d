"""Consumer groups and their offsets: the machine of one __consumer_offsets partition. [P]"""
