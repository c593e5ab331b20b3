"""`tidemark` on a terminal: what the DAGs do and what the page shows, by the same code.

invocation  one call: a pipeline's file, and the connections that it names
acting      commands that change something
showing     commands that show something
doctor      everything that a bug report needs, and no secret
screen      tables and colours
"""
