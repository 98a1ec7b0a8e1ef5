//! nvml-sim.
