"""The members, the leader, and the one versioned view: on ZooKeeper, our own or the user's ensemble."""
