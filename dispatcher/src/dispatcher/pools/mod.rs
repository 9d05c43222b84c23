//! What the scheduler (`crate::core`) asks for, done by system calls.

pub mod batching;
pub mod begun;
pub mod carry_out;
pub mod opening;
pub mod origin;
pub mod queues;
pub mod reports;
pub mod skipping;
