//! The socket that the two halves of a connection share, and the TLS state above the socket.
//!
//! Lock rule: a thread holds the TLS lock while it encrypts or decrypts bytes in memory, never while it reads or writes
//! the socket. So a writer that waits on a full socket never stops the reader, and two nodes that both send much never
//! wait for each other in a circle. `outgoing.rs` decides which thread may write to the socket: one thread at a time,
//! in the order of encryption.

use std::io::{self, BufRead, IoSlice, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::error::LinkError;
use crate::socket::{self, WhenFull};

/// Bytes encrypted or decrypted under one hold of the TLS lock, at most about.
const TLS_HOLD_BYTES: usize = 128 << 10;

/// Bytes in their final form that a full socket has not taken yet.
#[derive(Default)]
pub(crate) struct Backlog {
    bytes: Vec<u8>,
    /// How many of the bytes are written.
    written: usize,
}

impl Backlog {
    fn left(&self) -> &[u8] {
        self.bytes.get(self.written..).unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.left().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left().is_empty()
    }

    /// Frees the written bytes, and the memory of an empty backlog above `kept` bytes. A peer that reads slowly, but
    /// never all bytes, can therefore not make the backlog grow forever.
    fn tidy(&mut self, kept: usize) {
        if self.is_empty() {
            self.bytes.clear();
            self.written = 0;
            self.bytes.shrink_to(kept);
        } else if self.written >= self.bytes.len() / 2 {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }
}

/// Memory for writing to the socket. The holder of the socket owns it.
#[derive(Default)]
pub(crate) struct WireBuffers {
    pub(crate) backlog: Backlog,
    ciphertext: Vec<u8>,
}

impl WireBuffers {
    /// Frees the memory above `kept` bytes. The bytes of the backlog stay.
    pub(crate) fn tidy(&mut self, kept: usize) {
        self.ciphertext.clear();
        self.ciphertext.shrink_to(kept);
        self.backlog.tidy(kept);
    }
}

/// The shared socket of a connection.
pub(crate) struct Wire {
    socket: TcpStream,
    peer: SocketAddr,
    tls: Option<Mutex<rustls::Connection>>,
    /// The reason for closing, once the connection is closed.
    closed: OnceLock<String>,
}

impl Wire {
    /// A wire that encrypts if `tls` is given. The TLS handshake must be complete.
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

    /// Closes both directions at once and wakes the threads that read or write. The first reason counts.
    pub(crate) fn close(&self, reason: String) {
        let _ = self.closed.set(reason);
        // This call fails if the peer has closed the socket: the socket is closed either way.
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

    /// The error to report for a failed call on the socket. If this node has closed the connection, the error gives the
    /// reason for closing instead.
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

    /// Sends `parts` one after another. Bytes that a full socket does not take go to the backlog; if the backlog has
    /// bytes before, all bytes do.
    pub(crate) fn send(
        &self,
        parts: [&[u8]; 3],
        buffers: &mut WireBuffers,
        when_full: WhenFull,
    ) -> Result<(), LinkError> {
        if !self.is_encrypted() {
            return self.write(parts, &mut buffers.backlog, when_full);
        }
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes <= 2 * TLS_HOLD_BYTES {
            return self.encrypt_and_write(parts, buffers, when_full);
        }
        parts
            .iter()
            .flat_map(|part| part.chunks(TLS_HOLD_BYTES))
            .try_for_each(|piece| self.encrypt_and_write([piece, &[], &[]], buffers, when_full))
    }

    /// Writes the backlog, as far as the socket takes it.
    pub(crate) fn write_backlog(
        &self,
        buffers: &mut WireBuffers,
        when_full: WhenFull,
    ) -> Result<(), LinkError> {
        let backlog = &mut buffers.backlog;
        while !backlog.is_empty() {
            match self.write_once(&[IoSlice::new(backlog.left())], when_full)? {
                Some(written) => backlog.written += written,
                None => break,
            }
        }
        Ok(())
    }

    fn encrypt_and_write(
        &self,
        parts: [&[u8]; 3],
        buffers: &mut WireBuffers,
        when_full: WhenFull,
    ) -> Result<(), LinkError> {
        buffers.ciphertext.clear();
        self.encrypt(parts, &mut buffers.ciphertext)?;
        let ciphertext = [&buffers.ciphertext[..], &[], &[]];
        self.write(ciphertext, &mut buffers.backlog, when_full)
    }

    fn write(
        &self,
        parts: [&[u8]; 3],
        backlog: &mut Backlog,
        when_full: WhenFull,
    ) -> Result<(), LinkError> {
        let mut slices = parts.map(IoSlice::new);
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, 0);
        while backlog.is_empty() && !rest.is_empty() {
            match self.write_once(rest, when_full)? {
                Some(written) => IoSlice::advance_slices(&mut rest, written),
                None => break,
            }
        }
        for left in rest {
            backlog.bytes.extend_from_slice(left);
        }
        Ok(())
    }

    fn write_once(
        &self,
        parts: &[IoSlice<'_>],
        when_full: WhenFull,
    ) -> Result<Option<usize>, LinkError> {
        socket::write_once(&self.socket, parts, when_full)
            .map_err(|error| self.socket_error("send", error))
    }

    /// Appends the ciphertext of `parts` to `out`.
    fn encrypt(&self, parts: [&[u8]; 3], out: &mut Vec<u8>) -> Result<(), LinkError> {
        let Some(tls) = &self.tls else { return Ok(()) };
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

    /// Decrypts bytes from the socket and gives the plaintext to `take`, in pieces.
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
                break; // the peer has ended its TLS stream: the next read of the socket reports the end
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

/// Gives all plaintext that TLS has ready to `take`.
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
