//! What has happened in all seeds, and the check that every kind of event has.

use std::collections::BTreeMap;

/// What has happened in a run.
#[derive(Default, Debug, Clone)]
pub struct Summary {
    pub steps: u64,
    pub sessions: u64,
    pub transactions: u64,
    pub claims_lost: u64,
    pub queue_was_full: u64,
    pub waits_ended: u64,
    pub deaths: u64,
    /// Sessions that liars had in hand as they ended.
    pub lost_in_hand: u64,
    pub crashes: u64,
    pub cancels: u64,
    pub refused: u64,
    pub holds: u64,
    pub locks: u64,
    pub kept: u64,
    pub woken_for_memory: u64,
    /// Backends that did not start.
    pub given_up: u64,
    /// Clients that kept a backend idle.
    pub idle_ended: u64,
    /// Pauses that stood, and statements that were told of their end.
    pub paused: u64,
    pub pauses_ended: u64,
    /// Refused by pool_max_sessions; for want of a slot; native as too many wait.
    pub beyond_limit: u64,
    pub without_slot: u64,
    pub natives: u64,
    pub longest_wait_us: u64,
    /// The most sessions that were served, or got a place, before one that came earlier (turns.rs).
    pub most_served_before: i64,
    pub most_places_before: usize,
    /// The most sessions of another tenant that were served while one was in turn.
    pub most_of_others: i64,
    /// The most sessions of a role that were served within a limit.
    pub most_within_limit: usize,
    /// Why pools grew or shrank, and how often.
    pub reasons: BTreeMap<&'static str, u64>,
}

impl Summary {
    pub fn add(&mut self, other: &Summary) {
        self.steps += other.steps;
        self.sessions += other.sessions;
        self.transactions += other.transactions;
        self.claims_lost += other.claims_lost;
        self.queue_was_full += other.queue_was_full;
        self.waits_ended += other.waits_ended;
        self.deaths += other.deaths;
        self.lost_in_hand += other.lost_in_hand;
        self.crashes += other.crashes;
        self.cancels += other.cancels;
        self.refused += other.refused;
        self.holds += other.holds;
        self.locks += other.locks;
        self.kept += other.kept;
        self.paused += other.paused;
        self.pauses_ended += other.pauses_ended;
        self.woken_for_memory += other.woken_for_memory;
        self.given_up += other.given_up;
        self.idle_ended += other.idle_ended;
        self.beyond_limit += other.beyond_limit;
        self.without_slot += other.without_slot;
        self.natives += other.natives;
        self.longest_wait_us = self.longest_wait_us.max(other.longest_wait_us);
        self.most_served_before = self.most_served_before.max(other.most_served_before);
        self.most_places_before = self.most_places_before.max(other.most_places_before);
        self.most_of_others = self.most_of_others.max(other.most_of_others);
        self.most_within_limit = self.most_within_limit.max(other.most_within_limit);
        for (reason, times) in &other.reasons {
            *self.reasons.entry(reason).or_default() += times;
        }
    }

    /// Events that never happen in the simulator prove nothing.
    pub fn assert_all_has_happened(&self) {
        assert!(self.transactions > 0 && self.claims_lost > 0 && self.queue_was_full > 0);
        assert!(self.waits_ended > 0 && self.deaths > 0 && self.crashes > 0);
        assert!(self.lost_in_hand > 0);
        assert!(self.cancels > 0 && self.refused > 0 && self.holds > 0);
        assert!(self.locks > 0 && self.kept > 0 && self.woken_for_memory > 0);
        assert!(self.given_up > 0);
        assert!(self.idle_ended > 0 && self.paused > 0 && self.pauses_ended > 0);
        assert!(self.beyond_limit > 0 && self.without_slot > 0 && self.natives > 0);
        assert!(self.most_of_others > 1 && self.most_within_limit > 1);
        // The reasons that simulated processes can give; `Unclean`, for one, is none of them.
        assert_eq!(self.reasons.len(), 16, "{:?}", self.reasons);
    }
}
