"""Implements the command `tidemark` with the code of the DAGs and of the page.

invocation         one call: a pipeline's file, options and connections
changing_commands  commands that change something
showing_commands   commands that show something
doctor             checks of a pipeline's environment
bug_report         a text for a bug report, without secrets
screen             tables and colours
"""
