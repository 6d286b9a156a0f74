//! Resync and distributed recovery between two real stores, without a network.

#[cfg(test)]
mod converge;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod nodes;
#[cfg(test)]
mod race;
#[cfg(test)]
mod recover;
#[cfg(test)]
mod steps;
