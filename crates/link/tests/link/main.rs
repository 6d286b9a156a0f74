//! Two ends of a connection over loopback: connecting and traffic.

#[cfg(test)]
mod connecting;
#[cfg(test)]
mod pair;
#[cfg(test)]
mod traffic;
