//! What the dispatcher keeps of the pools' backends, each kind of thing in a table of its own;
//! and the ways to reach them.
//!
//! | module | what it keeps |
//! |---|---|
//! | `links` | the control connections of attached backends; the pools' ready queues |
//! | `opening` | connections by which backends are opened; the way to the server |

pub mod links;
pub mod opening;
