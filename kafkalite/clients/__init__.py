"""Producer, consumer and admin client. [P]"""
