"""The log and its cluster: protocol, storage, machines, broker. [P]"""
