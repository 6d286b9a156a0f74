//! The checkers, judged: good histories pass, bad ones are caught.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

mod bad;
mod falsified;
mod fs;
mod good;
mod hand;
mod stores;
mod world;
mod wrong;
