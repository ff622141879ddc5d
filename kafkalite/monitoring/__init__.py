"""A broker's metrics and health over HTTP.                                                 [IO]"""
