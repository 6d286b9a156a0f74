//! The one socket that the two halves of a connection share, and the TLS state above it.
//!
//! Lock rule: the TLS lock is held while bytes are encrypted or decrypted in memory, never while
//! the socket is read or written. So a writer that waits on a full socket never stops the reader,
//! and two nodes that both send much never wait for each other in a circle. Who may write to the
//! socket is settled above, in [`crate::sender`]: one at a time, in the order of encryption.

use std::io::{self, BufRead, IoSlice, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::error::LinkError;
use crate::socket;

/// About the most bytes encrypted or decrypted under one hold of the TLS lock.
const TLS_HOLD_BYTES: usize = 128 << 10;

/// Bytes for the socket as they are, which nobody could write without waiting.
#[derive(Default)]
pub(crate) struct Backlog {
    bytes: Vec<u8>,
    /// How many of them are written.
    written: usize,
}

impl Backlog {
    pub(crate) fn left(&self) -> &[u8] {
        self.bytes.get(self.written..).unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.left().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left().is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.written = 0;
    }

    /// Gives memory back above `kept` bytes when it is empty. Keeps a peer that reads slowly, but never all,
    /// from making it grow for ever.
    pub(crate) fn tidy(&mut self, kept: usize) {
        if self.is_empty() {
            self.clear();
            self.bytes.shrink_to(kept);
        } else if self.written >= self.bytes.len() / 2 {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }
}

/// The shared socket of a connection.
pub(crate) struct Wire {
    socket: TcpStream,
    peer: SocketAddr,
    tls: Option<Mutex<rustls::Connection>>,
    /// Why the connection was closed, once it is.
    closed: OnceLock<String>,
}

impl Wire {
    /// A wire that encrypts if it is given a connection past its handshake.
    pub(crate) fn new(
        socket: TcpStream,
        peer: SocketAddr,
        tls: Option<rustls::Connection>,
    ) -> Self {
        Self {
            socket,
            peer,
            tls: tls.map(Mutex::new),
            closed: OnceLock::new(),
        }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Closes both directions at once and wakes whoever reads or writes. The first reason counts.
    pub(crate) fn close(&self, reason: String) {
        let _ = self.closed.set(reason);
        // The peer may have closed it already; either way it is closed afterwards.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    pub(crate) fn check_open(&self) -> Result<(), LinkError> {
        match self.closed.get() {
            None => Ok(()),
            Some(reason) => Err(LinkError::Closed {
                peer: self.peer,
                reason: reason.clone(),
            }),
        }
    }

    /// The error to report for a failed call on the socket: if the connection was closed here,
    /// that is the cause.
    pub(crate) fn socket_error(&self, operation: &'static str, source: io::Error) -> LinkError {
        self.check_open().err().unwrap_or(LinkError::Socket {
            peer: self.peer,
            operation,
            source,
        })
    }

    fn tls_error(&self, source: rustls::Error) -> LinkError {
        LinkError::BadStream {
            peer: self.peer,
            source,
        }
    }

    /// Sends `parts` one after another, waiting as long as the socket is full. `scratch` is reused
    /// memory.
    pub(crate) fn send(&self, parts: [&[u8]; 3], scratch: &mut Vec<u8>) -> Result<(), LinkError> {
        if !self.is_encrypted() {
            return self.write_all(parts);
        }
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes <= 2 * TLS_HOLD_BYTES {
            return self.send_sealed(parts, scratch);
        }
        parts
            .iter()
            .flat_map(|part| part.chunks(TLS_HOLD_BYTES))
            .try_for_each(|piece| self.send_sealed([piece, &[], &[]], scratch))
    }

    /// Sends `parts` as far as the socket takes them without waiting. The rest goes to the backlog, and all
    /// of it where there is one.
    pub(crate) fn send_nowait(
        &self,
        parts: [&[u8]; 3],
        scratch: &mut Vec<u8>,
        backlog: &mut Backlog,
    ) -> Result<(), LinkError> {
        if !self.is_encrypted() {
            return self.write_some(parts, backlog);
        }
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes <= 2 * TLS_HOLD_BYTES {
            return self.send_sealed_nowait(parts, scratch, backlog);
        }
        parts
            .iter()
            .flat_map(|part| part.chunks(TLS_HOLD_BYTES))
            .try_for_each(|piece| self.send_sealed_nowait([piece, &[], &[]], scratch, backlog))
    }

    fn send_sealed_nowait(
        &self,
        parts: [&[u8]; 3],
        scratch: &mut Vec<u8>,
        backlog: &mut Backlog,
    ) -> Result<(), LinkError> {
        scratch.clear();
        self.encrypt(parts, scratch)?;
        self.write_some([scratch, &[], &[]], backlog)
    }

    /// Writes the backlog as far as the socket takes it without waiting.
    pub(crate) fn write_backlog(&self, backlog: &mut Backlog) -> Result<(), LinkError> {
        while !backlog.is_empty() {
            match self.write_nowait(&[IoSlice::new(backlog.left())])? {
                Some(written) => backlog.written += written,
                None => break,
            }
        }
        Ok(())
    }

    fn write_some(&self, parts: [&[u8]; 3], backlog: &mut Backlog) -> Result<(), LinkError> {
        let mut slices = parts.map(IoSlice::new);
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, 0);
        while backlog.is_empty() && !rest.is_empty() {
            match self.write_nowait(rest)? {
                Some(written) => IoSlice::advance_slices(&mut rest, written),
                None => break,
            }
        }
        for left in rest {
            backlog.bytes.extend_from_slice(left);
        }
        Ok(())
    }

    fn write_nowait(&self, parts: &[IoSlice<'_>]) -> Result<Option<usize>, LinkError> {
        socket::write_nowait(&self.socket, parts).map_err(|error| self.socket_error("send", error))
    }

    fn send_sealed(&self, parts: [&[u8]; 3], scratch: &mut Vec<u8>) -> Result<(), LinkError> {
        scratch.clear();
        self.encrypt(parts, scratch)?;
        self.write_all([scratch, &[], &[]])
    }

    /// Appends to `out` what is to be written to the socket so that the peer reads `parts`.
    pub(crate) fn encrypt(&self, parts: [&[u8]; 3], out: &mut Vec<u8>) -> Result<(), LinkError> {
        let Some(tls) = &self.tls else {
            for part in parts {
                out.extend_from_slice(part);
            }
            return Ok(());
        };
        let mut tls = tls.lock();
        let taken = tls.writer().write_vectored(&parts.map(IoSlice::new));
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let whole = taken.and_then(|taken| {
            if taken == bytes {
                return Ok(());
            }
            Err(io::ErrorKind::WriteZero.into())
        });
        whole
            .and_then(|()| drain_tls(&mut tls, out))
            .map_err(|source| self.socket_error("encrypt", source))
    }

    /// Feeds bytes read from the socket to TLS and hands on what they decrypt to, in pieces.
    pub(crate) fn decrypt(
        &self,
        mut sealed: &[u8],
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), LinkError> {
        let Some(tls) = &self.tls else { return Ok(()) };
        let mut tls = tls.lock();
        while !sealed.is_empty() {
            let fed = tls
                .read_tls(&mut sealed)
                .map_err(|source| self.socket_error("decrypt", source))?;
            tls.process_new_packets()
                .map_err(|source| self.tls_error(source))?;
            drain_plain(&mut tls.reader(), &mut take)
                .map_err(|source| self.socket_error("decrypt", source))?;
            if fed == 0 {
                break; // the peer has ended its stream: the socket will say so too
            }
        }
        Ok(())
    }

    /// Sends bytes that [`Wire::encrypt`] made, waiting as long as the socket is full.
    pub(crate) fn write_raw(&self, bytes: &[u8]) -> Result<(), LinkError> {
        self.write_all([bytes, &[], &[]])
    }

    fn write_all(&self, parts: [&[u8]; 3]) -> Result<(), LinkError> {
        let mut slices = parts.map(IoSlice::new);
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match (&self.socket).write_vectored(rest) {
                Ok(0) => return Err(self.socket_error("send", io::ErrorKind::WriteZero.into())),
                Ok(written) => IoSlice::advance_slices(&mut rest, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.socket_error("send", error)),
            }
        }
        Ok(())
    }
}

/// Moves all ciphertext that TLS has ready to `out`.
fn drain_tls(tls: &mut rustls::Connection, out: &mut Vec<u8>) -> io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(out)?;
    }
    Ok(())
}

/// Hands on all plaintext that TLS has ready.
fn drain_plain(reader: &mut rustls::Reader<'_>, take: &mut impl FnMut(&[u8])) -> io::Result<()> {
    loop {
        let bytes = match reader.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            other => other?.len(),
        };
        if bytes == 0 {
            return Ok(());
        }
        take(reader.fill_buf()?);
        reader.consume(bytes);
    }
}
