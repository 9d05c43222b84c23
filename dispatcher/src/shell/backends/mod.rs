//! What the pools' backends have in this process, each kind of thing in a table of
//! its own; and how they are reached.
//!
//! | module | what it keeps |
//! |---|---|
//! | `links` | the control connections of attached backends; the pools' ready queues |
//! | `opening` | connections by which backends are opened; the way to the server |

pub mod links;
pub mod opening;
