//! How many backends are what: kept as each changes, so that nobody goes through all of
//! them to know.

use super::life::{Life, Lives};
use std::collections::HashMap;

/// What counts of one backend.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    pub pool: u32,
    pub life: Life,
    pub held: bool,
    /// It goes so that this pool may have its place.
    pub makes_room_for: Option<u32>,
    /// A session of some role has it for long.
    pub is_of_role: bool,
}

impl Counted {
    pub fn is_for_all(self) -> bool {
        self.life == Life::Shared && !self.held
    }

    /// It starts, or is any session's, and none has it for long.
    pub fn is_of_no_role(self) -> bool {
        matches!(self.life, Life::Starting | Life::Shared) && !self.is_of_role
    }

    /// One whose session became dedicated after it was told to go stays for as long as
    /// that lasts.
    fn goes_for(self) -> Option<u32> {
        let goes = self.life.is_leaving() && !self.life.is_dedicated();
        self.makes_room_for.filter(|_| goes)
    }
}

/// Of all backends, and by pool. Vectors are no longer than they have to be.
#[derive(Debug, Default)]
pub struct Counts {
    pub total: usize,
    pub dedicated: usize,
    /// Shared ones that transactions hold without doing anything.
    pub held: usize,
    /// Those that serve any session of their pools, but for those that are held.
    pub shared_and_not_held: usize,
    /// Those that start, or are any session's, and no session has.
    pub of_no_role: usize,
    lives: Vec<Lives>,
    /// So many go for no other pool, by pool, if there are so many;
    reserves: Vec<usize>,
    /// and those of all pools that are there.
    reserved: usize,
    /// By the pool for which they are about to go; none is 0.
    go_for: HashMap<u32, usize>,
}

impl Counts {
    /// One is something else now; it comes, or goes.
    pub fn change(&mut self, was: Option<Counted>, is: Option<Counted>) {
        let Some(pool) = is.or(was).map(|one| one.pool as usize) else {
            return;
        };
        self.total = self.total + usize::from(is.is_some()) - usize::from(was.is_some());
        let follow = |count: &mut usize, counts: fn(Counted) -> bool| {
            *count += usize::from(is.is_some_and(counts));
            *count -= usize::from(was.is_some_and(counts));
        };
        follow(&mut self.dedicated, |one| one.life.is_dedicated());
        follow(&mut self.held, |one| one.held);
        follow(&mut self.shared_and_not_held, Counted::is_for_all);
        follow(&mut self.of_no_role, Counted::is_of_no_role);
        let goes_for = |one: Option<Counted>| one.and_then(Counted::goes_for);
        if goes_for(was) != goes_for(is) {
            self.count_going(goes_for(was), goes_for(is));
        }
        if self.lives.len() <= pool {
            self.lives.resize(pool + 1, Lives::default());
        }
        self.reserved -= self.reserved_of(pool);
        self.lives[pool].count(was, is);
        self.reserved += self.reserved_of(pool);
    }

    fn count_going(&mut self, was: Option<u32>, is: Option<u32>) {
        if let Some(is) = is {
            *self.go_for.entry(is).or_default() += 1;
        }
        if let Some(count) = was.and_then(|was| self.go_for.get_mut(&was)) {
            *count -= 1;
        }
        if let Some(was) = was.filter(|was| self.go_for.get(was) == Some(&0)) {
            self.go_for.remove(&was);
        }
    }

    /// How many of a pool's are what.
    pub fn lives(&self, pool: u32) -> Lives {
        self.lives.get(pool as usize).copied().unwrap_or_default()
    }

    /// Is one about to go so that this pool may have its place?
    pub fn somebody_goes_for(&self, pool: u32) -> bool {
        self.go_for.contains_key(&pool)
    }

    // ---- reserves ----------------------------------------------------------

    /// So many of a pool's are to go for no other.
    pub fn reserve(&mut self, pool: u32, backends: usize) {
        let pool = pool as usize;
        if self.reserves.len() <= pool {
            if backends == 0 {
                return;
            }
            self.reserves.resize(pool + 1, 0);
        }
        self.reserved -= self.reserved_of(pool);
        self.reserves[pool] = backends;
        self.reserved += self.reserved_of(pool);
    }

    pub fn reserve_of(&self, pool: u32) -> usize {
        self.reserves.get(pool as usize).copied().unwrap_or(0)
    }

    /// Of those that serve any session of their pools.
    pub fn reserved(&self) -> usize {
        self.reserved
    }

    fn reserved_of(&self, pool: usize) -> usize {
        let reserve = self.reserve_of(pool as u32);
        reserve.min(self.lives.get(pool).map_or(0, Lives::shared))
    }

    #[cfg(test)]
    pub fn check(&self, all: &[Counted]) {
        let mut lives = vec![Lives::default(); self.lives.len()];
        let mut go_for: HashMap<u32, usize> = HashMap::new();
        for one in all {
            lives[one.pool as usize].count(None, Some(*one));
            let stays = one.life.is_dedicated() || !one.life.is_leaving();
            if let Some(pool) = one.makes_room_for.filter(|_| !stays) {
                *go_for.entry(pool).or_default() += 1;
            }
        }
        assert_eq!(lives, self.lives, "what pools' backends are");
        assert_eq!(go_for, self.go_for, "for whom they go");
        let count = |counts: fn(&&Counted) -> bool| all.iter().filter(counts).count();
        let for_all = count(|one| one.life == Life::Shared && !one.held);
        assert_eq!(for_all, self.shared_and_not_held, "not held");
        let of_no_role = count(|one| one.is_of_no_role());
        assert_eq!(of_no_role, self.of_no_role, "of no role");
        assert_eq!(count(|one| one.held), self.held, "held backends");
        assert_eq!(all.len(), self.total, "all backends");
        let dedicated = count(|one| one.life.is_dedicated());
        assert_eq!(dedicated, self.dedicated, "dedicated backends");
    }
}
