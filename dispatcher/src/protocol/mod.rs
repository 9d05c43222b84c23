//! PostgreSQL's wire protocol, as far as the dispatcher speaks it.
//!
//! Everything here is free of I/O: bytes go in, actions come out. The owner of the socket
//! reads, feeds, sends and closes as the actions say. Nothing here panics, whatever the bytes.
//!
//! A client's socket is handed to a backend later, so the dispatcher must not read anything
//! that belongs to the backend. Every reader of client bytes therefore says how many bytes it
//! can take without reading past the present message (`wanted`), and consumes no more than that
//! message.
//!
//! Text from the wire is bytes, not `String`: names and option values are in an encoding that
//! is unknown before the session has begun.
//!
//! | module | what it does |
//! |---|---|
//! | [`startup`] | the first packets of a client: negotiation, cancel, startup |
//! | [`options`] | the startup packet's `options`, split into name and value |
//! | [`report`] | an error or notice with its SQLSTATE, and its encoding |
//! | [`messages`] | encoders of the other messages, both directions |
//! | [`frontend`] | one message of a client at a time; passing over a whole request |
//! | [`backend`] | bounded decoder of what a backend sends while it starts |
//! | [`opening`] | the start of a backend |
//! | [`auth`] | authentication of clients |

pub mod auth;
pub mod backend;
pub mod frontend;
pub mod message_start;
pub mod messages;
pub mod opening;
pub mod options;
pub mod report;
pub mod startup;

pub use report::{Report, Severity};

#[cfg(test)]
mod random_tests;
