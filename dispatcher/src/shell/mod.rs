//! The dispatcher listens, logs clients in, holds idle sessions and their contexts, and hands
//! each session that speaks to a backend.
//!
//! It sees no byte of a query or a result. One thread runs an event loop in which nothing blocks;
//! if configured, other threads beside it only wait for events of sessions. One more thread turns
//! passwords into keys, and one asks the name service. Another process runs the relays of TLS
//! clients: every byte of these passes through it.
//!
//! Imports go downwards in this table, and no file accesses the fields of another:
//!
//! |---|---|
//! | `start`, `threads` | the start; the threads that wait for events |
//! | `event_loop` | events go to the parts that they concern |
//! | `login` | from a connection to a client that may come in |
//! | `scheduler` | carries out what the core (`crate::core`) decides |
//! | `console` | the connections of consoles |
//! | `sessions`, `backends` | their sockets, greetings, links, queues and openings |
//! | `keeper` | what an earlier dispatcher has left behind |
//! | `log` | lines for the server's log |
//! | `statistics` | what is counted of roles, databases and pools |
//! | `link` | memory and frames shared with the server; control connections |
//! | `jobs` | other threads: passwords, names |
//! | `tls` | the process of TLS relays |
//! | `batch_scheduling` | whether a thread that is woken may interrupt others |
//! | `parameters`, `events` | settings; what an event is about and what a turn costs |
//! | `sys` | system calls; all unsafe code |

mod backends;
mod batch_scheduling;
mod console;
mod event_loop;
mod events;
mod jobs;
mod keeper;
mod link;
mod log;
mod login;
mod parameters;
mod scheduler;
mod sessions;
mod start;
mod statistics;
mod sys;
mod threads;
mod tls;

pub use start::main;

/// Holds the clients of a PostgreSQL server. The server's pg_baton launcher starts it, not a
/// person: it inherits all that it needs, or the launcher tells it.
#[derive(clap::Parser)]
#[command(name = "baton-dispatcher", version, about, long_about = None)]
pub struct Arguments {
    /// Run the relays of TLS clients for the dispatcher that starts this process
    #[arg(long, hide = true)]
    relay: bool,
}
