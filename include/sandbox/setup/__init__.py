"""What has to be there before anything runs: Java, the lock's packages, Delta's jars. Standard library only."""
