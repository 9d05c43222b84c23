//! The dispatcher: listens, logs clients in, holds idle sessions and their
//! contexts, and hands each session that speaks to a backend.
//!
//! It never sees a byte of a query or a result, TLS apart. One thread runs an event loop
//! in which nothing blocks, with others that only wait for sessions beside it if
//! that is wanted; one more turns passwords into keys, one asks the name
//! service, and some run relays for TLS clients: of those alone every byte goes
//! through here.
//!
//! Imports go downwards in this table, and no file has another's fields:
//!
//! | module | what it does |
//! |---|---|
//! | `start`, `threads` | the start; the threads that wait for events |
//! | `event_loop` | events go to the parts that they concern |
//! | `login` | from a connection to a client that may come in |
//! | `scheduler` | carries out what the core (`crate::core`) decides |
//! | `sessions`, `backends` | their sockets, greetings, links, queues and openings |
//! | `link` | memory and frames shared with the server; control connections |
//! | `jobs`, `tls` | other threads: passwords, names, TLS |
//! | `batch_scheduling` | whether a thread that is woken may interrupt others |
//! | `parameters`, `events`, `log` | settings; what an event is about and what a turn costs; the log |
//! | `sys` | system calls; all unsafe code |

mod backends;
mod batch_scheduling;
mod event_loop;
mod events;
mod jobs;
mod link;
mod log;
mod login;
mod parameters;
mod scheduler;
mod sessions;
mod start;
mod sys;
mod threads;
mod tls;

pub use start::main;

/// Holds the clients of a PostgreSQL server. Started by the server's pg_baton
/// launcher, not by hand: all it needs is inherited or told by the launcher.
#[derive(clap::Parser)]
#[command(name = "baton-dispatcher", version, about, long_about = None)]
pub struct Arguments {}
