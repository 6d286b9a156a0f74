//! The `lockstep` program: the commands, over the library that does the work.

mod cli;
mod demo;
mod playground;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockstep_driver::memory::bound();
    cli::run()
}
