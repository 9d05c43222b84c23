//! What sessions have in this process, each kind of thing in a table of its own:
//! none of these knows of another, nor of the scheduler.
//!
//! | module | what it keeps |
//! |---|---|
//! | `sockets` | the sockets of sessions, and the epolls in which they stand |
//! | `begun` | who has sent part of a message |
//! | `skipping` | whose request is passed over |
//! | `greetings` | what new sessions are told and begin with |
//! | `identity` | what the server's processes can know of a session |

pub mod begun;
pub mod greetings;
pub mod sockets;
