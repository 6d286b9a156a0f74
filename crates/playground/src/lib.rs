//! The commands `lockstep playground` and `lockstep demo`: both nodes of a datastore on this machine.
//!
//! The program links this crate by its default feature `playground`. The crate does not depend on the program: it
//! writes the configuration files of the nodes and runs every command by the program's path, as an operator does.
//!
//! The modules from the bottom up: `background`, `bytes`, `config`, `mounts`, `network`, `ports`, `program` and `sockets`
//! stand alone; `disk` uses `mounts`; `layout`, `node` and `witness` use them; `playground` runs the nodes. `records`, `record_service` and
//! `record_client` are a program and its client; `cluster_address` takes the client to the node that serves. `cluster`
//! starts all of these, and `demo` and `measure` use it.

mod background;
mod bytes;
mod cluster;
mod cluster_address;
mod config;
mod demo;
mod description;
mod disk;
mod layout;
mod measure;
mod mounts;
mod network;
mod node;
mod options;
mod playground;
mod ports;
mod program;
mod record_client;
mod record_service;
mod records;
mod sockets;
mod witness;

pub use demo::{DemoArgs, run as run_demo};
pub use measure::{ClientPause, Failure, MeasureOptions, measure};
pub use options::PlaygroundArgs;
pub use playground::run as run_playground;
