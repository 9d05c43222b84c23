//! What the dispatcher keeps of sessions, each kind of thing in a table of its own. No table
//! knows of another, or of the scheduler.
//!
//! | module | what it keeps |
//! |---|---|
//! | `sockets` | the sockets of sessions, their epolls, and the origins of clients |
//! | `begun` | sessions whose client has sent part of a message; requests that are skipped |
//! | `greetings` | what new sessions are told and begin with; their identity in CONTROL |

pub mod begun;
pub mod greetings;
pub mod sockets;
