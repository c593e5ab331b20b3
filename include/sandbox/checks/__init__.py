"""What is run on a checkout to see that it is sound, and the judge that compares a source with its lake."""
