"""What a user writes: a flow of sources, fragments and sinks. A flow is data; building it starts nothing."""
