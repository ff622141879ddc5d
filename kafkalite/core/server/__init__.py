"""The sockets of a broker. [P]"""
