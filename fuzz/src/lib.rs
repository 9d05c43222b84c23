//! What the fuzzer runs: each target a function of bytes, which panics where a
//! promise is broken.
//!
//! The dispatcher is a program, not a library, so its files are taken in as they
//! are, compiled with coverage counters and every assertion on. Only what is free
//! of I/O is run; nothing here opens a socket.
//!
//! | target | what is fed |
//! |---|---|
//! | `startup` | a connection's first bytes: requests for encryption, cancel requests, the startup packet, its `options` |
//! | `authentication` | what a client answers while it logs in, by each method |
//! | `requests` | a session's requests: what is passed over, and what must be there before a backend reads |
//! | `backend` | what a starting backend sends, to the decoder and to the login behind it |
//! | `frames` | frames of the control socket: what a backend says there, what the launcher answers |
//! | `console` | what a client of the console sends |
//! | `tls` | a TLS client's bytes, and all that can happen to both ends of its relay |

#![allow(dead_code, missing_docs, unused_imports)]

pub mod authentication;
pub mod backend;
#[path = "../../dispatcher/src/console/mod.rs"]
mod console;
pub mod console_client;
pub mod frames;
mod pieces;
#[path = "../../dispatcher/src/protocol/mod.rs"]
mod protocol;
pub mod requests;
mod shell;
pub mod startup;
pub mod tls;
