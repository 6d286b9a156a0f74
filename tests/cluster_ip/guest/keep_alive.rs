//! A library for `LD_PRELOAD`: every connection of the program has short TCP keep-alives, as with Debian's libkeepalive.

use std::ffi::{c_int, c_long};

/// Of the x86-64.
const SOCKET: c_long = 41;
const SOL_SOCKET: c_int = 1;
const SO_KEEPALIVE: c_int = 9;
const IPPROTO_TCP: c_int = 6;
const TCP_KEEPIDLE: c_int = 4;
const TCP_KEEPINTVL: c_int = 5;
const TCP_KEEPCNT: c_int = 6;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn setsockopt(socket: c_int, level: c_int, name: c_int, value: *const c_int, bytes: u32) -> c_int;
}

/// Makes a socket as the C library does. A socket that knows no such option stays as it is.
#[unsafe(no_mangle)]
pub extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the call takes three numbers.
    let made = unsafe { syscall(SOCKET, domain, kind, protocol) } as c_int;
    for (level, name, value) in [
        (SOL_SOCKET, SO_KEEPALIVE, 1),
        (IPPROTO_TCP, TCP_KEEPIDLE, 1),
        (IPPROTO_TCP, TCP_KEEPINTVL, 1),
        (IPPROTO_TCP, TCP_KEEPCNT, 60),
    ] {
        // SAFETY: the value lives, and has four bytes.
        let _ = unsafe { setsockopt(made, level, name, &value, 4) };
    }
    made
}
