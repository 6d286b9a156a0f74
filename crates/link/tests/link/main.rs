//! Two ends of a connection over loopback: who gets in, and what comes through.

#[cfg(test)]
mod handshake;
#[cfg(test)]
mod pair;
#[cfg(test)]
mod traffic;
