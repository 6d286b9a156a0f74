//! The `lockstep` program: the commands, over the library that does the work.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockstep_driver::memory::bound();
    cli::run()
}
