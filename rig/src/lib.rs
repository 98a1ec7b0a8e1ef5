//! rig.
