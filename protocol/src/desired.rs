//! What a node was told to hold and run, checked on receipt by the agent.
