//! Resync and distributed recovery between two real stores, without a network.

#![allow(clippy::disallowed_methods)] // tests have threads of their own

#[cfg(test)]
mod arrival;
#[cfg(test)]
mod converge;
#[cfg(test)]
mod delta;
#[cfg(test)]
mod fallback;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod many_parts;
#[cfg(test)]
mod nodes;
#[cfg(test)]
mod proof;
#[cfg(test)]
mod race;
#[cfg(test)]
mod recover;
#[cfg(test)]
mod resumed;
#[cfg(test)]
mod runs;
#[cfg(test)]
mod steps;
#[cfg(test)]
mod void_sums;
