//! How much the core does in a turn of the loop, and the time of each event by its kind, if they
//! are kept (costs.rs).

use super::world::World;
use crate::core::{Core, Event};
use std::collections::BTreeMap;
use std::time::Instant;

/// Nanoseconds by kind of event; empty unless they are kept.
#[derive(Default)]
pub struct EventTimes {
    pub are_kept: bool,
    by_kind: BTreeMap<String, Vec<u64>>,
    /// Of this turn: words that were read, actions, and events.
    words: u64,
    pub actions: u64,
    events: u64,
}

impl EventTimes {
    /// Tells the core an event, and notes the time it took.
    pub fn handle(&mut self, core: &mut Core, event: Event, words: &World) {
        let before = words.words_read.get();
        self.handle_timed(core, event, words);
        self.words += words.words_read.get() - before;
        self.events += 1;
    }

    /// The launcher has answered, which is an event as well.
    pub fn is_answered(&mut self) {
        self.events += 1;
    }

    /// Ends a turn: returns its events, and the words read and actions done for them.
    pub fn turn_ends(&mut self) -> (u64, u64, u64) {
        let turn = (self.events, self.words, self.actions);
        (self.events, self.words, self.actions) = (0, 0, 0);
        turn
    }

    fn handle_timed(&mut self, core: &mut Core, event: Event, words: &World) {
        if !self.are_kept {
            return core.handle(event, words);
        }
        let kind = format!("{event:?}");
        let kind = kind.split(['(', ' ']).next().unwrap_or_default().to_owned();
        let began = Instant::now();
        core.handle(event, words);
        let took = began.elapsed().as_nanos() as u64;
        self.by_kind.entry(kind).or_default().push(took);
    }

    /// The longest thousandth depends on the machine's other processes, and is left out of the
    /// mean.
    pub fn say(&mut self, title: &str) {
        eprintln!("{title}: microseconds, mean of the first 99.9 %, 99 %, 99.9 %, longest (times)");
        for (kind, mut times) in std::mem::take(&mut self.by_kind) {
            times.sort_unstable();
            let of = |per_mille: usize| times[(times.len() - 1) * per_mille / 1000] as f64 / 1000.0;
            let most = times.len().div_ceil(1000).min(times.len() - 1);
            let first = &times[..times.len() - most];
            let mean = first.iter().sum::<u64>() as f64 / first.len() as f64 / 1000.0;
            let (p99, p999, longest, count) = (of(990), of(999), of(1000), times.len());
            eprintln!("  {kind}: {mean:.1}, {p99:.0}, {p999:.0}, {longest:.0} ({count})");
        }
    }
}
