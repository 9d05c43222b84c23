//! From a connection to a session: who may come in, and the first answer.

pub mod admission;
pub mod clients;
mod door;
pub mod errands;
pub mod greeting;
pub mod jobs;
pub mod limits;
pub mod listeners;
pub mod login_cache;
pub mod native;
mod outcomes;
pub mod roles;
pub mod securing;
mod session_pid;
