//! The dispatcher: listens, logs clients in, holds idle sessions and their
//! contexts, and hands each session that speaks to a backend.
//!
//! It never sees a byte of a query or a result, TLS apart. One thread runs an event loop
//! in which nothing blocks, with others that only wait for sessions beside it if
//! that is wanted; one more turns passwords into keys, one asks the name
//! service, and some run relays for TLS clients: of those alone every byte goes
//! through here.
//!
//! | module | what it does |
//! |---|---|
//! | `event_loop`, `threads` | the state of a dispatcher, and a round of events; who waits for them |
//! | `login` | from a connection to a session |
//! | `tls` | TLS, and the relays between it and what is handed over |
//! | `pools` | what the scheduler (`crate::core`) decides, done |
//! | `link` | memory and frames shared with the server; backends', launcher's, views' connections |
//! | `clients`, `slab` | tables: sessions' sockets; connections, logins |
//! | `timers`, `resting`, `shutdown`, `queries` | time, want of descriptors, the end, the views |
//! | `parameters`, `log`, `start` | what it is told, how it tells, how it begins |
//! | `sys` | system calls; all unsafe code |

mod clients;
mod event_loop;
mod link;
mod log;
mod login;
mod parameters;
mod pools;
mod queries;
mod resting;
mod shutdown;
mod slab;
mod start;
mod sys;
mod threads;
mod timers;
mod tls;

pub use start::main;

/// Holds the clients of a PostgreSQL server. Started by the server's pg_baton
/// launcher, not by hand: all it needs is inherited or told by the launcher.
#[derive(clap::Parser)]
#[command(name = "baton-dispatcher", version, about, long_about = None)]
pub struct Arguments {}

/// Session memory in bytes, within what offsets can name.
fn session_memory(parameters: &parameters::Parameters) -> usize {
    const MOST: u64 = 8 << 30;
    parameters.session_memory_bytes.min(MOST) as usize
}
