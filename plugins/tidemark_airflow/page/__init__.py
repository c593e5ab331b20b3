"""Serves the page in Airflow's navigation and on every DAG: the pipelines' state, their findings, and buttons.

views     what the plugin announces: cheap, since every Airflow process loads plugins
app       routes, and who may call them
reading   the library's answers for them
static/   the page itself: modules of script, one style sheet, and uPlot for the plots; nothing from elsewhere
"""
