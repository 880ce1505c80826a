"""Who is there, who leads, and the one versioned view: on ZooKeeper, our own or the user's ensemble."""
