//! Nothing to generate yet.

fn main() {}
