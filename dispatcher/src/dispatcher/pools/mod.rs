//! Pools, their backends, and which session gets one.

pub mod backends;
pub mod batching;
pub mod cancel;
pub mod databases;
pub mod dedicated;
pub mod dispatch;
pub mod last_backend;
pub mod make_room;
pub mod origin;
pub mod places;
pub mod pool;
pub mod pool_table;
pub mod replaceable;
pub mod room;
pub mod start_failures;
pub mod waits;
