//! The dispatcher: listens, logs clients in, holds idle sessions and their
//! contexts, and hands each session that speaks to a backend.
//!
//! It never sees a byte of a query or a result. One thread runs an event loop
//! in which nothing blocks; one more turns passwords into keys, and one asks the
//! name service.
//!
//! | module | what it does |
//! |---|---|
//! | `event_loop` | the state of a dispatcher, and its loop |
//! | `listeners`, `clients`, `admission`, `greeting` | from a connection to a session |
//! | `dispatch`, `waits` | from a session that speaks to a backend, or too late |
//! | `backends`, `origin`, `control` | backends and their control connections |
//! | `last_backend` | which backends stay, and which make room |
//! | `launcher`, `parameters`, `roles` | what the server says |
//! | `timers`, `shutdown`, `queries` | time, the end, the views |
//! | `sessions`, `pools`, `pool_table`, `memory`, `slab`, `wire`, `layout` | the data, free of I/O except `pool_table` |
//! | `sys` | system calls; all unsafe code |
//! | `jobs`, `log` | threads for what takes long; the log's format |

mod admission;
mod backends;
mod clients;
mod control;
mod databases;
mod dispatch;
mod event_loop;
mod greeting;
mod jobs;
mod last_backend;
mod launcher;
mod layout;
mod listeners;
mod log;
mod login_cache;
mod memory;
mod origin;
mod parameters;
mod pool_table;
mod pools;
mod queries;
mod roles;
mod sessions;
mod shutdown;
mod slab;
mod start;
mod sys;
mod timers;
mod waits;
mod wire;

pub use start::main;

/// Arguments of `baton dispatcher`: none. All it needs is inherited or told by
/// the launcher.
#[derive(clap::Args)]
pub struct Arguments {}

/// Session memory in bytes, within what offsets can name.
fn session_memory(parameters: &parameters::Parameters) -> usize {
    const MOST: u64 = 8 << 30;
    parameters.session_memory_bytes.min(MOST) as usize
}
