//! Reconcilers: woken by a hint, driven by rows, and also run on a timer.
