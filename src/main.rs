//! The `lockstep` program.

fn main() {}
