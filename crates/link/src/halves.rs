//! The two halves of a connection as those see them who only send and receive: so that a connection
//! can be something else than a socket.

use std::time::Duration;

use crate::error::LinkError;
use crate::frame::FrameRef;
use crate::receiver::Receiver;
use crate::sender::Sender;

/// The sending half, for any number of threads. What is promised of order, bounds and errors is
/// what [`Sender`] promises.
pub trait SendFrames: Send + Sync {
    /// See [`Sender::send`].
    fn send(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError>;

    /// See [`Sender::post`].
    fn post(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError>;

    /// See [`Sender::send_nowait`].
    fn send_nowait(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError>;

    /// See [`Sender::leave`].
    fn leave(&self, header: &[u8], payload: &[u8]) -> Result<bool, LinkError>;

    /// See [`Sender::flush`].
    fn flush(&self) -> Result<(), LinkError>;

    /// See [`Sender::flush_nowait`].
    fn flush_nowait(&self) -> Result<(), LinkError>;

    /// See [`Sender::shutdown`].
    fn shutdown(&self, reason: &str);
}

/// The receiving half, for one thread.
pub trait ReceiveFrames: Send {
    /// See [`Receiver::set_timeout`].
    fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), LinkError>;

    /// See [`Receiver::recv`].
    fn recv(&mut self) -> Result<FrameRef<'_>, LinkError>;

    /// See [`Receiver::recv_soon`]. Where to wait costs nothing it is the same as [`ReceiveFrames::recv`].
    fn recv_soon(&mut self) -> Result<FrameRef<'_>, LinkError> {
        self.recv()
    }
}

impl SendFrames for Sender {
    fn send(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        Self::send(self, header, payload)
    }

    fn post(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        Self::post(self, header, payload)
    }

    fn send_nowait(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        Self::send_nowait(self, header, payload)
    }

    fn leave(&self, header: &[u8], payload: &[u8]) -> Result<bool, LinkError> {
        Self::leave(self, header, payload)
    }

    fn flush(&self) -> Result<(), LinkError> {
        Self::flush(self)
    }

    fn flush_nowait(&self) -> Result<(), LinkError> {
        Self::flush_nowait(self)
    }

    fn shutdown(&self, reason: &str) {
        Self::shutdown(self, reason);
    }
}

impl ReceiveFrames for Receiver {
    fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), LinkError> {
        Self::set_timeout(self, timeout)
    }

    fn recv(&mut self) -> Result<FrameRef<'_>, LinkError> {
        Self::recv(self)
    }

    fn recv_soon(&mut self) -> Result<FrameRef<'_>, LinkError> {
        Self::recv_soon(self)
    }
}
