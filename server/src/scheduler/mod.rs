//! The scheduling loop: one leader keeps the world in memory, plans with the engine, and commits under guard.
