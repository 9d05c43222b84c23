//! The lists through the table of sessions: of a pool's sessions, and of those
//! that wait, in the order of their turns. To link and to unlink costs nothing,
//! wherever in its list a session is.

use super::{index_of, name, Session, SessionId, Sessions};

/// None of the list.
pub const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
pub struct Link {
    before: u32,
    after: u32,
}

pub const UNLINKED: Link = Link {
    before: NONE,
    after: NONE,
};

/// A list through the table.
#[derive(Clone, Copy)]
pub struct List {
    first: u32,
    last: u32,
    length: usize,
}

pub const EMPTY: List = List {
    first: NONE,
    last: NONE,
    length: 0,
};

/// Which of a session's two links: of its pool's sessions, of those in its FIFO.
#[derive(Clone, Copy)]
pub enum Of {
    Pool = 0,
    Fifo = 1,
}

impl Sessions {
    pub fn waiting(&self, pool: u32) -> usize {
        self.lists[pool as usize][Of::Fifo as usize].length
    }

    pub fn members(&self, pool: u32) -> usize {
        self.lists[pool as usize][Of::Pool as usize].length
    }

    pub fn first_waiting(&self, pool: u32) -> Option<SessionId> {
        self.in_slot(self.lists[pool as usize][Of::Fifo as usize].first)
    }

    /// Who waits behind this one, which waits.
    pub fn waiting_behind(&self, session: SessionId) -> Option<SessionId> {
        let after = self.get(session)?.links[Of::Fifo as usize].after;
        self.in_slot(after)
    }

    pub fn fifo(&self, pool: u32) -> impl Iterator<Item = SessionId> + '_ {
        self.list(Of::Fifo, pool)
    }

    /// All sessions of a pool.
    pub fn of_pool(&self, pool: u32) -> impl Iterator<Item = SessionId> + '_ {
        self.list(Of::Pool, pool)
    }

    fn list(&self, of: Of, pool: u32) -> impl Iterator<Item = SessionId> + '_ {
        let mut next = self.lists[pool as usize][of as usize].first;
        std::iter::from_fn(move || {
            let found = self.table.get(next as usize)?;
            let id = name(found.generation, next);
            next = found.links[of as usize].after;
            Some(id)
        })
    }

    /// All sessions of one pool become another's; who waits keeps his turn.
    pub fn move_all(&mut self, old: u32, new: u32) {
        let ids: Vec<SessionId> = self.of_pool(old).collect();
        let mut waiting: Vec<(u64, u32)> = Vec::new();
        for pool in [old, new] {
            let list = self.fifo(pool);
            waiting.extend(list.map(|id| (self.table[index_of(id) as usize].turn, index_of(id))));
        }
        for (_, index) in &waiting {
            self.unlink(Of::Fifo, *index);
        }
        for id in ids {
            let index = index_of(id);
            self.unlink(Of::Pool, index);
            self.table[index as usize].pool = new;
            self.link(Of::Pool, index, NONE);
        }
        waiting.sort_unstable();
        for (_, index) in waiting {
            self.link(Of::Fifo, index, NONE);
        }
    }

    /// Into the FIFO, by turn: at one of its ends, as a rule.
    pub(super) fn link_by_turn(&mut self, index: u32) {
        let Session { pool, turn, .. } = self.table[index as usize];
        let list = self.lists[pool as usize][Of::Fifo as usize];
        let is_last = list.last == NONE || self.table[list.last as usize].turn < turn;
        let mut next = if is_last { NONE } else { list.first };
        while let Some(found) = self.table.get(next as usize) {
            if found.turn > turn {
                break;
            }
            next = found.links[Of::Fifo as usize].after;
        }
        self.link(Of::Fifo, index, next);
    }

    /// Before `next`, or last.
    pub(super) fn link(&mut self, of: Of, index: u32, next: u32) {
        let of = of as usize;
        let pool = self.table[index as usize].pool as usize;
        let before = match self.table.get(next as usize) {
            Some(found) => found.links[of].before,
            None => self.lists[pool][of].last,
        };
        self.table[index as usize].links[of] = Link {
            before,
            after: next,
        };
        match self.table.get_mut(before as usize) {
            Some(found) => found.links[of].after = index,
            None => self.lists[pool][of].first = index,
        }
        match self.table.get_mut(next as usize) {
            Some(found) => found.links[of].before = index,
            None => self.lists[pool][of].last = index,
        }
        self.lists[pool][of].length += 1;
    }

    pub(super) fn unlink(&mut self, of: Of, index: u32) {
        let of = of as usize;
        let pool = self.table[index as usize].pool as usize;
        let Link { before, after } = self.table[index as usize].links[of];
        match self.table.get_mut(before as usize) {
            Some(found) => found.links[of].after = after,
            None => self.lists[pool][of].first = after,
        }
        match self.table.get_mut(after as usize) {
            Some(found) => found.links[of].before = before,
            None => self.lists[pool][of].last = before,
        }
        self.table[index as usize].links[of] = UNLINKED;
        self.lists[pool][of].length -= 1;
    }
}
