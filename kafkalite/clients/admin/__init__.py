"""The admin client. [P]"""
