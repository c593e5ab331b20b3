"""`make demo`: a shop, and the story of its capture."""
