//! The options of a connection.

use std::time::Duration;

use lockstep_types::Encryption;

/// How to make and keep a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkOptions {
    /// Both ends must have the same value.
    pub encryption: Encryption,
    /// Limit for the TCP connect.
    pub connect_timeout: Duration,
    /// Limit for the greeting: everything after the TCP connect, until the connection can be used.
    pub greeting_timeout: Duration,
    /// Idle time after which the kernel probes the peer. A silent peer is dead after about half of this time again.
    /// Whole seconds. `None`: no probes.
    pub keepalive: Option<Duration>,
    /// Time that sent bytes may stay unacknowledged before the kernel closes the connection (`TCP_USER_TIMEOUT`).
    /// `None`: the system's value, many minutes.
    pub user_timeout: Option<Duration>,
    /// Size of the kernel's send buffer. `None`: the kernel tunes the size.
    pub send_buffer_bytes: Option<usize>,
    /// Size of the kernel's receive buffer. `None`: the kernel tunes the size.
    pub receive_buffer_bytes: Option<usize>,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            encryption: Encryption::On,
            connect_timeout: Duration::from_secs(5),
            greeting_timeout: Duration::from_secs(5),
            keepalive: Some(Duration::from_secs(10)),
            user_timeout: Some(Duration::from_secs(15)),
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
        }
    }
}
