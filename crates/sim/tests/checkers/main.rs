//! Tests of the checkers: good histories pass, bad histories are caught.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // Tests may panic.

mod bad;
mod falsified;
mod fs;
mod good;
mod hand;
mod stores;
mod world;
mod wrong;
