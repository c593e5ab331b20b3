"""What `make` calls, and nothing that Tidemark itself needs: one folder for each thing that it does.

setup ──► services ──► demo          checkout: where what lies; steps: one step after another, each said
                  └──► checks        clean: what the others made is taken away
"""
