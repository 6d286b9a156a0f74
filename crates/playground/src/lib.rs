//! The commands `lockstep playground` and `lockstep demo`: both nodes of a datastore on this machine.
//!
//! The program links this crate by its default feature `playground`. The crate does not depend on the program: it
//! writes the configuration files of the nodes and runs every command by the program's path, as an operator does.
//!
//! The modules from the bottom up: `config`, `ports`, `mounts`, `sockets` and `program` stand alone; `layout` and `node` use
//! them; `playground` runs the nodes; `demo` uses a running playground.

mod config;
mod demo;
mod description;
mod layout;
mod mounts;
mod node;
mod options;
mod playground;
mod ports;
mod program;
mod sockets;

pub use demo::{DemoArgs, run as run_demo};
pub use options::PlaygroundArgs;
pub use playground::run as run_playground;
