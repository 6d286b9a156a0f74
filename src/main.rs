//! The `lockstep` program: the commands, on top of the library.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockstep_driver::memory::bound();
    cli::run()
}
