//! The commands that show how things stand, and that change nothing.

mod caveats;
pub(super) mod export;
pub(super) mod health;
pub(super) mod status;
pub(super) mod verify;
pub(super) mod wait;
pub(super) mod why;
pub(super) mod witness_status;
pub(super) mod write_verifier;
